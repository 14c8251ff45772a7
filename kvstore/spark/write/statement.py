"""UPDATE, DELETE and MERGE: a commit that refuses rows which have changed since the statement has read them.

* Deletes come before upserts, whichever task sent them. A key that is both deleted and written is only written.
* A statement writes each key once: two rows for one key have no order.
* Only the keys that the statement writes count: writes of other keys go on beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.commit.coordinator import Confirm
from kvstore.errors import InvalidRequest, UnsupportedOperation
from kvstore.patch.patch import check_unchanged
from kvstore.read.lookup import FOUND
from kvstore.spark.write.staged import CHANGE_TYPE
from kvstore.table.table import Table
from logformat.ids import BucketId, Offset
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes
from logformat.rows.keys import KeyCodec

Command = Literal["DELETE", "UPDATE", "MERGE"]

_CHANGED = (
    "Rows that the statement changes have changed since it has read them, and nothing of it was written; run it again.",
    "the statement has read it; run it again",
)


@dataclass(frozen=True)
class Statement:
    """What a statement knows of the rows that it changes.

    Attributes:
        read_at: For each bucket, the offset as of which its rows are read.
    """

    read_at: dict[int, int]

    def completed(self, table: Table, batch: pa.RecordBatch, schema_id: int) -> pa.RecordBatch:
        """The rows of a statement, without numbers that the table gives, and with the columns that a delete lacks.

        Only those that take no nulls are added here: another one is null without that, also if it is new.

        Args:
            batch: With the change type of each row; that of an update that gives a row another key is ``append``.

        Raises:
            InvalidRequest: A row would get another number than the table has given it.
            Conflict: A row has another number by now.
        """
        kinds = batch.column(CHANGE_TYPE)
        automatic = table.options.auto_increment
        if automatic is not None and automatic in batch.schema.names:
            self._check_numbers(table, batch, automatic, schema_id)
            # A row that is updated keeps the number that the table has given it.
            number = batch.schema.get_field_index(automatic)
            is_new = pc.equal(kinds, ChangeType.INSERT.word)
            column = pc.if_else(is_new, batch.column(automatic), pa.scalar(None, batch.schema.field(number).type))
            batch = batch.set_column(number, automatic, column)
        for field in table.schema:
            if not field.nullable and field.name not in batch.schema.names:
                batch = batch.append_column(field.name, pa.nulls(batch.num_rows, field.type))
        return batch

    def _check_numbers(self, table: Table, batch: pa.RecordBatch, automatic: str, schema_id: int) -> None:
        is_update = pc.equal(batch.column(CHANGE_TYPE), ChangeType.UPDATE_POSTIMAGE.word)
        # A MERGE that also inserts has no number for some rows.
        updates = batch.filter(pc.and_(is_update, batch.column(automatic).is_valid()))
        key = list(table.primary_key or ())
        there = table.lookup(updates.select(key)).combine_chunks()
        differs = pc.and_(there.column(FOUND), pc.not_equal(there.column(automatic), updates.column(automatic)))
        wrong = there.filter(differs)
        if wrong.num_rows:
            keys = wrong.select(key).combine_chunks().to_batches()[0]
            check_unchanged(table, keys, self.read_at, None, schema_id, *_CHANGED)
            raise InvalidRequest(
                "The table fills this column, and a row keeps its number; leave the column out of the statement.",
                column=automatic,
                key=[str(column[0]) for column in keys.columns],
                number=wrong.column(automatic)[0],
                given=updates.column(automatic).filter(differs.combine_chunks())[0],
            )

    def decided(
        self, table: Table, parts: Mapping[BucketId, Changes], schema_id: int
    ) -> tuple[dict[BucketId, Changes], Confirm]:
        """Changes of the commit, and the check that it makes before it is decided.

        Args:
            parts: At least one.

        Raises:
            Conflict: A row that the statement changes has changed since it was read.
            OffsetOutOfRange: The log since then has expired.
            InvalidRequest: The statement writes a key twice.
            UnsupportedOperation: It deletes rows, and the table takes no deletes.
        """
        if any(changes.is_delete.true_count for changes in parts.values()):
            _check_deletes(table)
        key = list(table.primary_key or ())
        codec = KeyCodec([table.schema.field(name) for name in key])
        ordered = {bucket: _deletes_first(changes, codec, key) for bucket, changes in parts.items()}
        keys = pa.concat_batches([changes.rows.select(key) for changes in ordered.values()])
        # Other writers wait for the check in the commit, so only what comes after this one is left for it.
        seen = check_unchanged(table, keys, self.read_at, None, schema_id, *_CHANGED)

        def confirm(bases: Mapping[BucketId, Offset]) -> None:
            end = {int(bucket): int(offset) for bucket, offset in bases.items()}
            check_unchanged(table, keys, seen, end, schema_id, *_CHANGED)

        return ordered, confirm


def _deletes_first(changes: Changes, codec: KeyCodec, key: list[str]) -> Changes:
    keys = codec.encode([changes.rows.column(name) for name in key]).to_arrow()
    is_delete = changes.is_delete.to_numpy(zero_copy_only=False)
    written = keys.filter(pa.array(~is_delete))
    if pc.count_distinct(written).as_py() < len(written):
        counts = written.value_counts()
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))[0]
        row = changes.rows.select(key).slice(keys.index(twice).as_py(), 1)
        raise InvalidRequest(
            "The statement writes several rows of one key, and nothing of it was written; have it write one.",
            key=[str(column[0]) for column in row.columns],
        )
    is_kept = is_delete & ~pc.is_in(keys, written).to_numpy(zero_copy_only=False)
    return changes.take(pa.array(np.concatenate([np.flatnonzero(is_kept), np.flatnonzero(~is_delete)])))


def check_statement(table: Table, command: Command) -> None:
    """Refuse a statement that a table with a key does not take.

    Raises:
        UnsupportedOperation: The table merges rows, or takes no deletes.
    """
    engine = table.options.merge_engine
    if command != "DELETE" and engine != "last_row":
        raise UnsupportedOperation(
            f"{command} gives rows their values, and the merge engine of this table computes them from what is written;"
            " use INSERT.",
            table=table.name,
            merge_engine=engine,
        )
    if command == "DELETE":
        _check_deletes(table)


def _check_deletes(table: Table) -> None:
    options = table.options
    if options.delete_behavior != "allow":
        engine = options.merge_engine  # a name, or a name and arguments
        can_allow = engine == "last_row" or "aggregate" in engine
        raise UnsupportedOperation(
            "The table takes no deletes, and nothing was written; ALTER TABLE sets `table.delete.behavior`."
            if can_allow
            else "Nothing was written: the merge engine of this table takes no deletes.",
            table=table.name,
            delete_behavior=options.delete_behavior,
            merge_engine=engine,
        )
