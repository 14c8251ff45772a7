"""Changes that are reviewed before they are applied, and applied once.

* A patch has each key once, with the row as it was when the patch was made and the row as it is to become.
* It knows the offsets up to which it has seen the table. A row that changed after them is a conflict, and nothing of
  the patch is applied.
* Its commit is the only epoch of a writer whose name no other patch has: so it is applied once, and all or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import Conflict, InvalidRequest, UnsupportedOperation
from kvstore.history.undoing import Undo
from kvstore.patch import file
from kvstore.patch.comparison import compared
from kvstore.patch.contents import DELETE, STAY, Contents, Header
from kvstore.request.results import WriteResult
from kvstore.table.table import Table
from logformat.ids import BucketId, Offset
from logformat.rows.changes import Changes
from logformat.rows.json_form import shown_values

_KEYS_NAMED = 10
_CHANGED = (
    "Rows have changed since the patch was made, and nothing of it is applied; make the patch again.",
    "the patch was made; make the patch again",
)


class Patch:
    """Changes of a table, in a form that is reviewed: saved, loaded, checked, and applied once.

    Made by :meth:`of` and :meth:`load`. ``str(patch)`` is its text: a header, and a line for each row.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @classmethod
    def of(cls, table: Table, changes: Changes) -> Patch:
        """A patch of changes of a table; a change without effect is left out.

        Args:
            changes: Changes that undo others (:meth:`Table.undo`): then a row that has changed since they were computed
                is a conflict. Or any changes; then a row that changes from now on is.

        Raises:
            Conflict: A row has changed since the undo was computed.
            SchemaMismatch: The changes do not fit the table; or columns were renamed or dropped meanwhile, or since the
                undo was computed.
            UnsupportedOperation: The table has no key; its engine is not ``last_row``; it takes no deletes and the
                patch has some; or a row would need its old value in a column that the table fills. The error names the
                engine, the option or the column.
        """
        # Every name below is one of these columns, whatever they are called before this ends.
        fixed = table.with_fixed_columns(changes.schema_id if isinstance(changes, Undo) else None, _CHANGED[1])
        check_patchable(fixed)
        offsets = {bucket: end for bucket, (_, end) in fixed.offsets().items()}
        undone: dict[str, object] = {}
        stay = None
        if isinstance(changes, Undo):
            offsets, undone, stay = dict(changes.offsets), dict(changes.undone), changes.conflicts
        store_id, table_id = fixed.identity
        header = Header(
            id=uuid4().hex,
            store_id=store_id,
            table_id=table_id,
            table=fixed.name,
            schema_id=fixed.schema_id,
            key=list(fixed.primary_key or ()),
            offsets=offsets,
            as_of_ms=max(time for _, time in fixed.committed().values()),
            undone=undone,
        )
        patch = cls(Contents(header, compared(fixed, changes, stay)))
        patch._check_deletes(table)
        patch.check(table)
        return patch

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Patch:
        """The patch in a file.

        Raises:
            InvalidRequest: There is no such file.
            CorruptData: It is no patch, or was changed since it was saved.
            UnsupportedVersion: A newer version of kvstore wrote it.
        """
        return cls(file.read(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the patch into a file, in place of one that is there: text, then the rows as an Arrow stream.

        Raises:
            InvalidRequest: The path is a directory, its directory does not exist, or the patch takes more than 2 GiB.
            StoreFull, LogFailed: The disk is full, or refuses.
        """
        file.write(path, self._contents)

    def __str__(self) -> str:
        return self._contents.text()

    def __repr__(self) -> str:
        return f"<kvstore.Patch of {self._contents.header.table}: {len(self.changes)} rows>"

    @property
    def writer(self) -> str:
        """Name of the writer of its commit, in :attr:`Table.writers` and in :meth:`Table.history`; it never expires."""
        return f"patch {self._contents.header.id}"

    @property
    def table(self) -> str:
        """Name that the table had when the patch was made."""
        return self._contents.header.table

    @property
    def identity(self) -> tuple[UUID, int]:
        """Ids of the store and of the table that it is for; see :attr:`Table.identity`."""
        return self._contents.header.store_id, self._contents.header.table_id

    @property
    def offsets(self) -> dict[int, int]:
        """For each bucket, the offset up to which the patch knows the table."""
        return dict(self._contents.header.offsets)

    @property
    def changes(self) -> Changes:
        """The changes that it makes, each key once."""
        rows = self._contents.rows
        rows = rows.filter(pc.not_equal(rows.column("what"), STAY))
        removed = pc.equal(rows.column("what"), DELETE)
        image = pc.if_else(removed, rows.column("before"), rows.column("after"))
        columns = [image.field(number) for number in range(image.type.num_fields)]
        return Changes(pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(image.type))), removed)

    @property
    def rows(self) -> pa.RecordBatch:
        """Each key once: ``what`` becomes of it (store, update, delete, stay), and its row ``before`` and ``after``."""
        return self._contents.rows

    @property
    def conflicts(self) -> pa.RecordBatch:
        """Keys that stay as they are, because others changed them after the changes that are undone."""
        rows = self._contents.rows
        rows = rows.filter(pc.equal(rows.column("what"), STAY))
        return _keys(rows.column("before"), self._contents.header.key)

    def is_applied(self, table: Table) -> bool:
        """Whether the patch was applied to the table.

        Raises:
            InvalidRequest: The patch is for another table.
        """
        self._check_table(table)
        writer = table.writers.get(self.writer)
        # A bucket has its part only once the commit is decided; after a crash, some may lack theirs for a while.
        return writer is not None and any(
            table.bucket(bucket).last_sequence(writer.writer_id) is not None for bucket in range(table.buckets)
        )

    def check(self, table: Table) -> None:
        """Return if the patch can be applied: no row that it changes has changed since, or it was applied before.

        Raises:
            Conflict: Rows have changed; the error has their ``keys``.
            InvalidRequest: The patch is for another table.
            SchemaMismatch: Columns of the table were renamed or dropped since.
            OffsetOutOfRange: The log no longer reaches back to when the patch was made; make it again.
            CorruptBatch: The log is damaged.
        """
        self._seen(table)

    def apply(self, table: Table) -> WriteResult:
        """Apply all of the patch or nothing, as a commit of its own, once.

        Other writes can't come between the check and the commit.

        Returns:
            What was written; if the patch was applied before, ``duplicated`` is true, and nothing was written now.

        Raises:
            Conflict: Rows have changed since the patch was made; the error has their ``keys``. Nothing was written.
            InvalidRequest: The patch is for another table. Nothing was written.
            SchemaMismatch: Columns of the table were renamed or dropped since. Nothing was written.
            UnsupportedOperation: See :meth:`of`. Nothing was written.
            OffsetOutOfRange: See :meth:`check`. Nothing was written.
            StoreLocked, StoreFull, CorruptData, LogFailed: See :meth:`Table.apply_epoch`.
        """
        self._check_table(table)
        fixed = table.with_fixed_columns(self._contents.header.schema_id, _CHANGED[1])
        check_patchable(fixed)
        self._check_deletes(fixed)
        changes = self.changes
        automatic = fixed.options.auto_increment
        if automatic is not None:
            changes = Changes(changes.rows.drop_columns([automatic]), changes.is_delete)
        seen = self._seen(table)

        def confirm(bases: Mapping[BucketId, Offset]) -> None:
            self._check_since(table, seen, {int(bucket): int(offset) for bucket, offset in bases.items()})

        parts = {BucketId(bucket): part for bucket, part in fixed.by_bucket(changes).items()}
        return fixed.parts.apply(parts, self.writer, epoch=0, confirm=confirm)

    def _seen(self, table: Table) -> dict[int, int]:
        """The offsets up to which nothing is in conflict; see :meth:`check`, also for errors."""
        if not self.is_applied(table):
            try:
                return self._check_since(table, self.offsets, None)
            except Conflict:
                if not self.is_applied(table):  # else these are its own changes: another applies it at the same time
                    raise
        return dict(self.offsets)

    def _check_since(self, table: Table, start: Mapping[int, int], end: Mapping[int, int] | None) -> dict[int, int]:
        header = self._contents.header
        keys = self.changes.rows.select(header.key)
        return check_unchanged(table, keys, start, end, header.schema_id, *_CHANGED)

    def _check_table(self, table: Table) -> None:
        if self.identity != table.identity:
            raise InvalidRequest("The patch was made for another table.", patch_table=self.table, table=table.name)

    def _check_deletes(self, table: Table) -> None:
        behavior = table.options.delete_behavior
        if behavior != "allow" and self._contents.count(DELETE):
            raise UnsupportedOperation(
                "The patch deletes rows, and the table takes no deletes.", table=table.name, delete_behavior=behavior
            )


def check_patchable(table: Table) -> None:
    """Refuse a table that does not store rows as a patch has them.

    Raises:
        UnsupportedOperation: It has no key, or merges rows.
    """
    if table.primary_key is None:
        raise UnsupportedOperation("A log table has no rows that a patch could change.", table=table.name)
    if table.options.merge_engine != "last_row":
        raise UnsupportedOperation(
            "The merge engine of this table computes rows from what is written, so a patch can't give them a value;"
            " apply the changes with `overwrite`, see Bucket.apply().",
            table=table.name,
            merge_engine=table.options.merge_engine,
        )


def check_unchanged(
    table: Table,
    keys: pa.RecordBatch,
    start: Mapping[int, int],
    end: Mapping[int, int] | None,
    schema_id: int,
    changed: str,
    renamed: str,
) -> dict[int, int]:
    """Verify that the rows of some keys did not change in ranges of offsets, and return the ends of these ranges.

    Args:
        keys, start, end, schema_id: See :meth:`Table.keys_changed`, also for other errors.
        changed: Message of the error if they did.
        renamed: End of a message: since when columns were renamed or dropped, and what to do.

    Raises:
        Conflict: Rows have changed; the error has their ``keys``.
    """
    rows_changed, ends = table.parts.keys_changed(keys, start, end, schema_id, renamed)
    if rows_changed.num_rows:
        columns = [shown_values(column) for column in rows_changed.columns]
        named = [dict(zip(rows_changed.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
        raise Conflict(changed, keys=named, table=table.name, rows=len(named), first=named[:_KEYS_NAMED])
    return ends


def _keys(images: pa.StructArray, key: list[str]) -> pa.RecordBatch:
    fields = [images.type.field(name) for name in key]
    return pa.RecordBatch.from_arrays([images.field(name) for name in key], schema=pa.schema(fields))
