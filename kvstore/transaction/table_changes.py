"""What a transaction has read and changed of one table.

* A row that was read is kept as it is stored: the commit finds out by its bytes whether it is still the same.
* Changes are kept in their order, and the rows after them by key, so that the transaction reads what it wrote.
* A few rows are kept as operations of a small write (:mod:`kvstore.request.encoded`): their bytes are stored as they
  are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kvstore.arguments import shown
from kvstore.bucket.committer import Committer
from kvstore.errors import DeletionDisabled, SchemaMismatch, TransactionConflict, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.request.encoded import (
    BYTES_MAX,
    ROWS_MAX,
    SmallConditional,
    SmallRequest,
    Submitted,
    bytes_of,
    encoded_writes,
)
from kvstore.request.partition import bucket_finder, buckets_of_rows, spread
from kvstore.request.preparation import request_of
from kvstore.request.request import ConditionalRequest, Request
from kvstore.request.row_layout import layout_of
from kvstore.request.targets import filled, schema_given
from kvstore.table.conditional import completed, expected_row, replacement, stored
from kvstore.table.open_table import OpenTable
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.few.few_rows import Operation
from logformat.rows.given import row_of
from logformat.rows.intake import Data, Keys
from logformat.rows.json_form import shown_values
from logformat.rows.python_rows import rows_of


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of the table: its one row of columns, and its bytes in the index of its bucket."""

    row: pa.RecordBatch
    code: bytes
    bucket: BucketId


class TableChanges:
    """What a transaction has read and changed of one table.

    Args:
        opened: What the process has open of the table.

    Attributes:
        opened: The argument.
        definition: The table when the transaction first used it: columns are called by their names of then.
        read: By bucket and key, the stored row that was read first; empty if there was none.
    """

    def __init__(self, opened: OpenTable) -> None:
        self.opened = opened
        self.definition = opened.catalog.definition()
        self.read: dict[tuple[BucketId, bytes], bytes] = {}
        writes = encoded_writes(self.definition)
        self._writes = None if writes is None or writes.keeps_first else writes
        self._changes: list[Changes | list[Operation]] = []
        self._after: dict[bytes, pa.RecordBatch | bytes] = {}
        """By key, the row as it is stored or as columns; empty if it is deleted."""

    @property
    def written(self) -> Collection[bytes]:
        """The keys whose rows it changes, as bytes."""
        return self._after.keys()

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._changes)

    def get(self, key: Keys) -> dict[str, Any] | None:
        """See :meth:`Transaction.get`."""
        if self.definition.primary_key is not None:
            codec = layout_of(self.definition).single
            code = codec.encode_key(key)
            if code is not None:
                value = self._value(BucketId(bucket_finder(self.definition)(key, code)), code)
                if isinstance(value, bytes) and (not value or (row := codec.decode(key, code, value)) is not None):
                    return row if value else None
        row = self._row(self._key(key))
        return None if row is None else next(rows_of(row, self.definition.schema))

    def upsert(self, data: Data) -> None:
        """See :meth:`Transaction.upsert`."""
        if self._writes is not None and (few := self._writes.upserts(data, ROWS_MAX)) is not None:
            self.add_few(few)
            return
        wanted = schema_given(self.definition, self.definition.schema, None)
        for rows in intake.record_batches(data, wanted, fills=True):
            self.add(Changes.upserts(rows))

    def delete(self, keys: Keys) -> None:
        """See :meth:`Transaction.delete`."""
        self._check_keyed()
        is_allowed = self.definition.options.delete_behavior == "allow"
        if self._writes is not None and is_allowed and (few := self._writes.deletes(keys, ROWS_MAX)) is not None:
            self.add_few(few)
            return
        rows = intake.key_rows(keys, layout_of(self.definition).key_schema)
        if self.definition.options.delete_behavior == "ignore":
            return
        self.add(Changes.deletes(rows, self.definition.schema))

    def put_if(self, row: Any, expected: Any) -> None:
        """See :meth:`Transaction.put_if`."""
        self._check_keyed()
        key_row, decide = replacement(self.definition, row, expected)
        there = self._row(key := self._key_of(key_row))
        changes = decide(self.definition, intake.empty(self.definition.schema) if there is None else there)
        if changes is None:
            raise self.conflict(key.code)
        self.add(changes)

    def expect(self, key: Keys, row: Any) -> None:
        """See :meth:`Transaction.expect`."""
        changed_key = self._key(key)
        row = row_of(row)
        if not isinstance(row, Mapping | None):
            raise SchemaMismatch("A row is a dict from column name to value.", row=shown(row))
        expected = None if row is None else expected_row(self.definition, row, changed_key.row)
        there = self._row(changed_key)
        if expected is None or there is None:
            is_same = expected is there
        else:
            given = completed(expected, self.definition, there)
            is_same = stored(self.definition, given) == stored(self.definition, there)
        if not is_same:
            raise self.conflict(changed_key.code)

    def parts(self) -> list[Request | SmallRequest]:
        """All changes in their order, for another process."""
        requests: list[Request | SmallRequest] = []
        for each in self._changes:
            if isinstance(each, list):
                assert self._writes is not None
                runs = [each[start : start + ROWS_MAX] for start in range(0, len(each), ROWS_MAX)]
                requests += [SmallRequest(run, self._writes) for run in runs]
            else:
                requests.append(request_of(each, self.definition))
        return requests

    def check_table(self) -> None:
        """Verify that the table still takes the changes: every column in which a row has a value, and deletes.

        Raises:
            SchemaMismatch: A column was dropped.
            DeletionDisabled: Deletes were disabled, or are ignored now.
            NoSuchTable: The table was dropped.
        """
        table = self.opened.catalog.definition()
        behavior = table.options.delete_behavior
        if behavior != self.definition.options.delete_behavior and behavior != "allow" and self._has_deletes:
            raise DeletionDisabled(
                "The table takes no deletes any more; run the transaction again without them.",
                table=self.definition.name,
                delete_behavior=behavior,
            )
        names = table.renamed_since(self.definition.schema_id)
        dropped = [name for name, now in names.items() if now is None]
        if not dropped:
            return
        rows = self._all().rows
        if lost := [name for name in dropped if rows.column(name).null_count < len(rows)]:
            raise SchemaMismatch(
                "The transaction has written values of a column that was dropped meanwhile; run it again without them.",
                table=self.definition.name,
                dropped=lost,
            )

    @property
    def _has_deletes(self) -> bool:
        return any(
            any(few.value is None for few in each) if isinstance(each, list) else each.is_delete.true_count
            for each in self._changes
        )

    def verify(self, committers: Mapping[BucketId, Committer]) -> None:
        """Verify that every row that was read is still the same, and every column there; no bucket is written now.

        Args:
            committers: Committers of all buckets, which wait. The handles may wait for these: to hand a bucket over, or
                to close.

        Raises:
            TransactionConflict: One is not.
            InvalidRequest: See :meth:`check_table`.
        """
        self.check_table()
        for (bucket, code), value in self.read.items():
            if (committers[bucket].memtable.value(code) or b"") != value:
                raise self.conflict(code)

    def requests(self) -> dict[BucketId, Request | SmallRequest]:
        """The batch of each bucket, empty where nothing is changed.

        Raises:
            InvalidRequest: One is too large, or the table takes no deletes.
        """
        if self._writes is not None and (few := self._few()) is not None:
            small = self._writes.requests(few)
            return {bucket: small.get(bucket) or SmallRequest([], self._writes) for bucket in self._buckets()}
        parts = dict(spread(self.definition, self._all(), BucketId(0)))
        nothing = Changes.upserts(intake.empty(self.definition.schema))
        return {bucket: request_of(parts.get(bucket, nothing), self.definition) for bucket in self._buckets()}

    def _buckets(self) -> Iterator[BucketId]:
        return map(BucketId, range(self.definition.buckets))

    def only_bucket(self) -> BucketId | None:
        """The only bucket of all that was read and changed; None if there are several."""
        buckets = {bucket for bucket, _ in self.read}
        if self._writes is not None and (few := self._few()) is not None:
            buckets.update(self._writes.bucket_of(each.key) for each in few)
        else:
            buckets.update(bucket for bucket, part in spread(self.definition, self._all(), BucketId(0)) if len(part))
        return buckets.pop() if len(buckets) == 1 else None

    def conditional(self) -> Submitted:
        """All changes as one request to the only bucket, which is refused if a row that was read has changed."""
        writes, few = self._writes, self._few()
        if not self.read:
            if writes is not None and few is not None:
                return SmallRequest(few, writes)
            return request_of(self._all(), self.definition)
        before = {code: value for (_, code), value in self.read.items()}

        def decide(now: TableDefinition, rows: pa.RecordBatch) -> Changes:
            layout = layout_of(now)
            now_stored = dict(zip(layout.encode_keys(rows).to_list(), stored(now, rows), strict=True))
            there = [(code, value) for code, value in before.items() if value]
            codes, values = (BinaryColumn.from_list([each[half] for each in there]) for half in (0, 1))
            same = dict(zip(codes.to_list(), stored(now, layout.decode_found(codes, values)[0]), strict=True))
            for code in before:
                if now_stored.get(code) != same.get(code):
                    raise self.conflict(code)
            return request_of(self._all(), self.definition).changes

        if writes is None or few is None:
            return ConditionalRequest(list(before), decide, self.definition)

        def operations_on(there: list[bytes | None]) -> list[Operation]:
            for code, value in zip(before, there, strict=True):
                if before[code] != (value or b""):
                    raise self.conflict(code)
            return few

        return SmallConditional(
            keys=list(before), decide=decide, definition=self.definition, operations_on=operations_on, writes=writes
        )

    def _row(self, key: _Key) -> pa.RecordBatch | None:
        """The row of a key for this transaction; None if there is none."""
        value = self._value(key.bucket, key.code)
        if not isinstance(value, bytes):
            return value
        if not value:
            return None
        # Read after the value, so that it has its schema.
        layout = layout_of(self.opened.catalog.definition().named_as(self.definition))
        batch, _ = layout.decode_found(BinaryColumn.from_list([key.code]), BinaryColumn.from_list([value]))
        return batch.select(self.definition.schema.names)

    def _value(self, bucket: BucketId, code: bytes) -> pa.RecordBatch | bytes:
        """The row of a key for this transaction, as it is stored or as columns; empty if there is none."""
        if code in self._after:
            if self.definition.options.merge_engine != "last_row" or self.definition.options.auto_increment is not None:
                raise UnsupportedOperation(
                    "The row that this transaction has written is known once it is committed: the table merges rows, or"
                    " fills a column.",
                    table=self.definition.name,
                )
            return self._after[code]
        if (bucket, code) not in self.read:
            self.read[bucket, code] = self.opened.handles[bucket].value(code) or b""
        return self.read[bucket, code]

    def _key(self, key: Keys) -> _Key:
        self._check_keyed()
        return self._key_of(intake.key_rows([key], layout_of(self.definition).key_schema))

    def _key_of(self, row: pa.RecordBatch) -> _Key:
        (code,) = layout_of(self.definition).encode_keys(row).to_list()
        return _Key(row, code, BucketId(int(buckets_of_rows(self.definition, row)[0])))

    def _check_keyed(self) -> None:
        if self.definition.primary_key is None:
            raise UnsupportedOperation(
                "A log table has no key; its rows can only be appended.", table=self.definition.name
            )

    def add(self, changes: Changes) -> None:
        """Add changes."""
        if not len(changes):
            return
        rows = filled(changes.rows, self.definition.schema)
        # A small write is not asked again whether the table takes deletes.
        is_taken = self.definition.options.delete_behavior == "allow" or not changes.is_delete.true_count
        if self._writes is not None and is_taken and len(changes) <= ROWS_MAX:
            few = self._writes.rows.operations(rows, changes.is_delete)
            if few is not None:
                self.add_few(few)
                return
        self._changes.append(changes)
        if self.definition.primary_key is None:
            return
        codes = layout_of(self.definition).encode_keys(changes.rows).to_list()
        for row, (code, is_delete) in enumerate(zip(codes, changes.is_delete.to_pylist(), strict=True)):
            self._after[code] = b"" if is_delete else rows.slice(row, 1)

    def add_few(self, few: list[Operation]) -> None:
        """Add changes of few rows."""
        if self._changes and isinstance(last := self._changes[-1], list):
            last += few
        else:
            self._changes.append(few)
        for each in few:
            self._after[each.code] = each.value or b""

    def _few(self) -> list[Operation] | None:
        """All changes, if they are a small write."""
        if len(self._changes) != 1 or not isinstance(few := self._changes[0], list):
            return None
        return few if len(few) <= ROWS_MAX and bytes_of(few) <= BYTES_MAX else None

    def _all(self) -> Changes:
        if not self._changes:
            return Changes.upserts(intake.empty(self.definition.schema))
        parts = [self._columns_of(each) if isinstance(each, list) else each for each in self._changes]
        rows = [filled(each.rows, self.definition.schema) for each in parts]
        return Changes(pa.concat_batches(rows), pa.concat_arrays([each.is_delete for each in parts]))

    def _columns_of(self, few: list[Operation]) -> Changes:
        assert self._writes is not None
        return SmallRequest(few, self._writes).request().changes

    def code_of(self, key: Keys) -> bytes:
        """The bytes of a key in the index of its bucket."""
        return self._key(key).code

    def conflict(self, code: bytes) -> TransactionConflict:
        """The error that the row of a key has changed."""
        layout = layout_of(self.definition)
        columns = layout.keys.decode(BinaryColumn.from_list([code]))
        key = {name: shown_values(column)[0] for name, column in zip(layout.key_schema.names, columns, strict=True)}
        return TransactionConflict(_CHANGED, table=self.definition.name, key=key)


_CHANGED = "A row that the transaction has read, or expects, is another one now; run it again."
