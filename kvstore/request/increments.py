"""Increments: numbers that are added to columns of one row, in the turn of its bucket.

A flat row is changed where its bytes are (:func:`small_increment`); any other by Arrow (:func:`increment`). Both refuse
the same: a column that is null, and a sum that the column can't have.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, TypeAlias

import pyarrow as pa

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest, InvalidTargetColumns, SchemaMismatch, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Reply
from kvstore.request.encoded import EncodedWrites, SmallConditional, encoded_writes
from kvstore.request.row_layout import layout_of
from kvstore.request.targets import schema_given
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId
from logformat.log.batch import BatchHeader, decode_verified
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.few.few_rows import CellPlace, Operation
from logformat.rows.given import row_of
from logformat.rows.python_rows import rows_of
from logformat.rows.python_values import MISFITS
from logformat.rows.types.registry import column_type

_EXACT = Context(prec=100)
Decide = Callable[[TableDefinition, pa.RecordBatch], "Changes | None"]


@dataclass(slots=True, eq=False)  # frozen would make setting its fields slow
class Amounts:
    """What is added to the columns of a row.

    Attributes:
        of: For each column its amount: an int for integers, a float for floats, a Decimal for decimals.
        fields: The columns.
    """

    of: dict[str, Any]
    fields: Mapping[str, pa.Field]

    @classmethod
    def given(cls, definition: TableDefinition, amounts: Any) -> Amounts:
        """Amounts as a caller gives them.

        Raises:
            InvalidTargetColumns: There is no such column, or it can't be set.
            SchemaMismatch: A column has no numbers, or an amount is no number that fits it.
        """
        if not (type(amounts) is dict or isinstance(amounts, Mapping)) or not amounts:
            raise SchemaMismatch(
                "Amounts are a dict from column name to number, and not empty.", amounts=shown(amounts)
            )
        fields, has_integers = _fields(definition, tuple(amounts))
        if has_integers and set(map(type, amounts.values())) == {int}:
            return cls(dict(amounts), fields)
        return cls({name: _amount(fields[name], amount) for name, amount in amounts.items()}, fields)

    def added(self, name: str, value: Any) -> Any:
        """The sum in one column.

        Raises:
            InvalidRequest: The value is null, or the sum is more than the column can have.
        """
        if value is None:
            raise InvalidRequest("A column that is null can't be incremented; store a number first.", column=name)
        amount = self.of[name]
        if isinstance(amount, Decimal):
            return _EXACT.add(value, amount)
        total = value + amount
        if isinstance(total, float) and not isfinite(total) and isfinite(value):
            raise self.overflow(name, value)
        return total

    def overflow(self, name: str, value: Any) -> InvalidRequest:
        """The error for a sum that its column can't have."""
        return InvalidRequest(
            "The sum does not fit the column; the row stays as it is.",
            column=name,
            type=self.fields[name].type,
            value=value,
            amount=self.of[name],
        )


@lru_cache(maxsize=1024)
def _fields(definition: TableDefinition, names: tuple[str, ...]) -> tuple[Mapping[str, pa.Field], bool]:
    """The columns of these names, and whether all of them have integers; raises what :meth:`Amounts.given` raises."""
    schema = definition.schema
    if unknown := [name for name in names if name not in schema.names]:
        raise InvalidTargetColumns("The table has no such column.", unknown=unknown, columns=schema.names)
    automatic = definition.options.auto_increment
    if fixed := [name for name in names if name in (definition.primary_key or ()) or name == automatic]:
        raise InvalidTargetColumns(
            "A column of the key, or one that the table fills, can't be incremented.", columns=fixed
        )
    fields = {name: schema.field(name) for name in names}
    return fields, all(pa.types.is_integer(field.type) for field in fields.values())


def _amount(field: pa.Field, given: Any) -> Any:
    kind, types = field.type, pa.types
    try:
        if types.is_integer(kind) and not isinstance(given, bool):
            return operator.index(given)
        if types.is_floating(kind) and not isinstance(given, (bool, str)) and isfinite(given):
            return float(given)
        if types.is_decimal(kind) and not isinstance(given, bool):
            amount = given if isinstance(given, Decimal) else Decimal(operator.index(given))
            if amount.is_finite():
                _check_places(field, amount)
                return amount
    except SchemaMismatch:
        raise
    except (TypeError, ValueError, OverflowError):
        pass
    if not column_type(kind).is_number:
        raise SchemaMismatch("Only columns of numbers can be incremented.", column=field.name, type=kind)
    raise SchemaMismatch(
        "An amount is a finite number that fits its column.", column=field.name, type=kind, given=shown(given)
    )


def _start(field: pa.Field, given: Any) -> Any:
    """A number of ``default`` as Python has it: those of numpy wrap round, and True is none."""
    if given is None:
        return None
    try:
        if pa.types.is_floating(field.type) and not isfinite(given):
            return float(given)
        return _amount(field, given)
    except (SchemaMismatch, TypeError) as error:
        raise SchemaMismatch(
            "A value of `default` is no number that fits its column.",
            column=field.name,
            type=field.type,
            given=shown(given),
        ) from error


def _check_places(field: pa.Field, amount: Decimal) -> None:
    """Refuse a decimal with more digits after the point than its column has; zeros at its end are none."""
    number = amount.as_tuple()
    digits = "".join(map(str, number.digits))
    zeros = len(digits) - len(digits.rstrip("0"))
    if amount and int(number.exponent) + zeros < -field.type.scale:
        raise SchemaMismatch(
            "The amount does not fit the column: it has more digits after the point.",
            column=field.name,
            type=field.type,
            amount=shown(amount),
        )


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
            sums=sums if _is_sent(writes.schema) and all(map(_fits_a_frame, self._amounts.of.values())) else None,
        )


class StoredSums:
    """Amounts that are added to the row of one key where its bytes are, by this process or by another one.

    Attributes:
        key: An operation on the key.
        amounts: What is added, by the name of its column.
        keep: Notes the operation that was stored.
    """

    def __init__(
        self,
        writes: EncodedWrites,
        key: Operation,
        amounts: Amounts,
        numbers: _Numbers,
        keep: Callable[[Operation], None],
    ) -> None:
        self.key, self.amounts, self.keep = key, amounts.of, keep
        self._writes = writes
        self._amounts = amounts
        self._numbers = numbers

    @classmethod
    def of(
        cls,
        writes: EncodedWrites,
        key: Operation,
        amounts: Amounts,
        keep: Callable[[Operation], None] = lambda _: None,
    ) -> StoredSums | None:
        """None if a column has no plain form."""
        numbers = _numbers_at(writes, tuple(amounts.of))
        return None if numbers is None else cls(writes, key, amounts, numbers, keep)

    def operation(self, stored: bytes) -> Operation:
        """What stores the sums.

        Args:
            stored: The row, long enough but not verified yet.

        Raises:
            InvalidRequest: A column is null, or can't have the sum.
        """
        sums = [(place, self._sum_at(name, place, form, stored)) for name, place, form in self._numbers]
        return self._writes.rows.changed(self.key.code, self.key.key, stored, sums)

    def logged(self, header: BatchHeader, data: memoryview) -> Operation | None:
        """What stored the sums, as a verified batch of the log has it; None if the table was another one."""
        if header.schema_id != self._writes.schema_id or not header.record_count:
            return None
        last = decode_verified(header, data, self._writes.schema).rows.slice(header.record_count - 1)
        operations = self._writes.rows.operations(last, pa.array([False]))
        return operations[0] if operations else None

    def _sum_at(self, name: str, place: CellPlace, form: struct.Struct, stored: bytes) -> bytes:
        (value,) = form.unpack_from(stored, place.start)
        value = None if stored[place.null_at] & place.null_bit else value
        try:
            return form.pack(self._amounts.added(name, value))
        except (struct.error, OverflowError) as error:
            raise self._amounts.overflow(name, value) from error


@lru_cache(maxsize=1024)
def _is_sent(schema: pa.Schema) -> bool:
    """Whether Python has a value for whatever its rows have: an answer that it can't give must write nothing."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary)
    return all(any(is_it(field.type) for is_it in kinds) for field in schema)


def _fits_a_frame(amount: float) -> bool:
    return isinstance(amount, float) or abs(amount) < 1 << 64


_Numbers: TypeAlias = list[tuple[str, CellPlace, struct.Struct]]


@lru_cache(maxsize=1024)
def _numbers_at(writes: EncodedWrites, names: tuple[str, ...]) -> _Numbers | None:
    """Where the bytes of a row have the numbers of columns, and their forms; None if one has none of plain form."""
    numbers = []
    for name in names:
        kind, place = writes.schema.field(name).type, writes.rows.place_of(name)
        if place is None or pa.types.is_decimal(kind):
            return None
        numbers.append((name, place, struct.Struct(f"<{column_type(kind).struct_code(kind)}")))
    return numbers
