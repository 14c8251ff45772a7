"""Increments: numbers that are added to columns of one row, in the turn of its bucket.

A flat row is changed where its bytes are (:func:`small_increment`); any other by Arrow (:func:`increment`). Both refuse
the same: a column that is null, and a sum that the column can't have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any

import pyarrow as pa

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest, SchemaMismatch, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Reply
from kvstore.request.encoded import EncodedWrites, SmallConditional, encoded_writes
from kvstore.request.row_layout import layout_of
from kvstore.request.sums import Amounts, StoredSums, amount_of
from kvstore.request.targets import schema_given
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.few.few_rows import Operation
from logformat.rows.given import row_of
from logformat.rows.python_rows import rows_of
from logformat.rows.python_values import MISFITS

Decide = Callable[[TableDefinition, pa.RecordBatch], "Changes | None"]


def _start(field: pa.Field, given: Any) -> Any:
    """A number of ``default`` as Python has it: those of numpy wrap round, and True is none."""
    if given is None:
        return None
    try:
        if pa.types.is_floating(field.type) and not isfinite(given):
            return float(given)
        return amount_of(field, given)
    except (SchemaMismatch, TypeError) as error:
        raise SchemaMismatch(
            "A value of `default` is no number that fits its column.",
            column=field.name,
            type=field.type,
            given=shown(given),
        ) from error


def first_row(definition: TableDefinition, key: Any, amounts: Amounts, default: Any) -> dict[str, Any]:
    """The row that is stored if there is none of the key.

    Args:
        default: The row to begin with, without its key; a column that is counted begins at 0 if it is left out.

    Raises:
        InvalidRequest: It is no row of this key, or a sum does not fit.
        UnsupportedOperation: The table fills a column of a new row.
    """
    given = row_of(default)
    if not isinstance(given, Mapping):
        raise SchemaMismatch("`default` is a row: a dict from column name to value.", default=shown(default))
    if (automatic := definition.options.auto_increment) is not None:
        raise UnsupportedOperation(
            "The table fills a column of each new row, so an increment can't begin one; upsert it first.",
            column=automatic,
        )
    named = intake.key_row(key, definition.primary_key or ())
    if other := [name for name in named if name in given and given[name] != named[name]]:
        raise InvalidRequest("`default` has another key than the one that is incremented.", key=key, columns=other)
    sums = {
        name: amounts.added(name, _start(amounts.fields[name], given[name]) if name in given else type(amount)(0))
        for name, amount in amounts.of.items()
    }
    return {**given, **named, **sums}


class Incremented:
    """One increment.

    Args:
        key: The key, one.
        first: See :func:`first_row`; None if a key without a row is an error.

    Attributes:
        row: The row after it, once it was applied.
    """

    def __init__(self, definition: TableDefinition, key: Any, amounts: Amounts, first: dict[str, Any] | None) -> None:
        self._definition = definition
        self._key = key
        self._amounts = amounts
        self._first = first
        self.row: dict[str, Any] | None = None

    def _keep_row(self, stored: pa.RecordBatch) -> None:
        """Note the row that is to be stored; an increment whose answer Python has no value for writes nothing."""
        (self.row,) = rows_of(stored, self._definition.schema)

    def _keep_operation(self, operation: Operation | None) -> None:
        self.row = None
        if operation is None:
            return
        layout, value = layout_of(self._definition), operation.value or b""
        self.row = layout.single.decoded(self._key, value)
        if self.row is None:
            keys, values = BinaryColumn.from_list([operation.code]), BinaryColumn.from_list([value])
            self._keep_row(layout.decode_found(keys, values)[0])

    def decide(self, definition: TableDefinition, rows: pa.RecordBatch) -> Changes | None:
        """The changes of a conditional request."""
        if not rows.num_rows:
            if self._first is None:
                return None
            wanted = schema_given(self._definition, self._definition.schema, None)
            first = intake.one_batch([self._first], wanted)
            self._keep_row(first)
            return Changes.upserts(intake.conform(first, schema_given(definition, definition.schema, None)))
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name in self._amounts.of:
            value = columns[name][0].as_py()
            total = self._amounts.added(name, value)
            try:
                columns[name] = pa.array([total], columns[name].type)
            except MISFITS as error:
                raise self._amounts.overflow(name, value) from error
            self._check_finite(name, value, columns[name][0].as_py())
        after = pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)
        self._keep_row(after)
        wanted = schema_given(definition, definition.schema, None)
        return Changes.upserts(intake.conform(after.select(wanted.names), wanted))

    def _check_finite(self, name: str, value: Any, total: Any) -> None:
        if isinstance(total, float) and not isfinite(total) and isfinite(value):
            raise self._amounts.overflow(name, value)

    def small(self) -> tuple[BucketId, SmallConditional] | None:
        """The same as one request and its bucket, if the table takes small writes and all is plain; else None."""
        writes = encoded_writes(self._definition)
        if writes is None or writes.keeps_first:
            return None
        key = tuple(map(self._key.get, self._definition.primary_key or ())) if type(self._key) is dict else self._key
        operation_key = writes.rows.delete(key)
        if operation_key is None or (type(self._key) is dict and len(self._key) != len(operation_key.key)):
            return None
        sums = StoredSums.of(writes, operation_key, self._amounts, self._keep_operation)
        if sums is None:
            return None
        first = None if self._first is None else writes.upserts(self._first, 1)
        if self._first is not None and first is None:
            return None

        def operations_on(there: list[bytes | None]) -> list[Operation] | None:
            (stored,) = there
            operation = None if first is None else first[0]
            if stored is not None:
                operation = sums.operation(stored)
            self._keep_operation(operation)
            return None if operation is None else [operation]

        return writes.bucket_of(operation_key.key), SmallConditional(
            keys=[operation_key.code],
            decide=self.decide,
            definition=self._definition,
            operations_on=operations_on,
            writes=writes,
            answer=Reply(),
            sums=sums if _is_sent(writes) and all(map(_fits_a_frame, self._amounts.of.values())) else None,
        )


@lru_cache(maxsize=256)
def _is_sent(writes: EncodedWrites) -> bool:
    """Whether an increment can be added by another process.

    Each has to leave a record, in which the row is found if the answer is lost; and Python needs a value for whatever
    a row has, since an answer that it can't give must write nothing.
    """
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary)
    is_shown = all(any(is_it(field.type) for is_it in kinds) for field in writes.schema)
    return is_shown and not writes.skips_identical


def _fits_a_frame(amount: float) -> bool:
    return isinstance(amount, float) or abs(amount) < 1 << 64
