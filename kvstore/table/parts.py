"""A table in parts, for what divides reads and writes between processes or threads: Spark, and patches.

* Changes are divided by bucket, and all parts are one commit.
* A reader in another process exchanges only offsets and keys with the process that plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import integer, integer_within
from kvstore.commit.coordinator import Confirm
from kvstore.errors import InvalidRequest, SchemaMismatch, UnsupportedOperation
from kvstore.history.since import keys_changed
from kvstore.meta.state import TableDefinition
from kvstore.read.splits import Splits
from kvstore.request.partition import buckets_of_rows, row_indices_by_bucket, spread
from kvstore.request.preparation import fitted
from kvstore.request.results import WriteResult
from kvstore.request.targets import filled
from kvstore.table.open_table import OpenTable
from kvstore.table.reading import Reading
from logformat.ids import OFFSET_MAX, BucketId, SchemaId
from logformat.rows.changes import Changes
from logformat.rows.intake import one_batch


class TableParts:
    """The parts of an open table; see :attr:`kvstore.Table.parts`.

    Args:
        reading: The table's reads.
        opened: Returns what the process has open of the table now.
    """

    def __init__(self, reading: Reading, opened: Callable[[], OpenTable]) -> None:
        self._reading = reading
        self._opened = opened

    @property
    def store_path(self) -> Path:
        """Directory of the store."""
        return self._opened().handles[0].paths.directory.parents[2]

    @property
    def definition(self) -> TableDefinition:
        """Definition of the table now."""
        return self._reading.current()

    def of_bucket(self, bucket: int) -> Splits:
        """Reads of a bucket that several readers share.

        Raises:
            InvalidRequest: The table has no such bucket.
        """
        number = self._reading.number_of(bucket)
        return Splits(
            self._opened().handles[number],
            self._reading.keyed,
            self._reading.latest,
            self._reading.held,
        )

    def keys_changed(
        self,
        keys: pa.RecordBatch,
        start: Mapping[int, int],
        end: Mapping[int, int] | None,
        schema_id: int,
        since: str = "the keys were read; read them again",
    ) -> tuple[pa.RecordBatch, dict[int, int]]:
        """Those of some keys that changed in ranges of offsets, and the ends of these ranges.

        Args:
            keys: The key's columns, in key order; each key once.
            start: The first offset of each bucket.
            end: The end (exclusive) for each bucket that is read, which the files of the log have; None for all that
                was acknowledged.
            schema_id: Schema of the keys.
            since: End of the message if its columns were renamed: since when, and what to do.

        Raises:
            SchemaMismatch: Columns of that schema were renamed or dropped since.
            OffsetOutOfRange: The log does not hold ``start``.
            UnsupportedOperation: It is a log table.
            CorruptBatch: The log is damaged.
        """
        return keys_changed(self._reading.past(), keys, start, end, schema_id, since)

    def apply(
        self,
        parts: Mapping[BucketId, Changes],
        writer: str,
        epoch: int | None = None,
        run: str | None = None,
        takeover: bool = False,
        replaces: bool = False,
        confirm: Confirm | None = None,
        schema_id: int | None = None,
        where: pc.Expression | None = None,
    ) -> WriteResult:
        """Like :meth:`kvstore.Table.apply_epoch`, for changes that are already split by bucket.

        Args:
            parts: Changes for each bucket, as :meth:`kvstore.Table.by_bucket` splits them, in any schema of the table.
            epoch: None for the one after the writer's last: then the write is all or nothing, but not exactly-once.
            replaces: Whether all rows with other keys are deleted; rows that other threads of this process write
                meanwhile stay. A row that stays equal is no change.
            confirm: Called before the commit is decided; see :data:`kvstore.commit.coordinator.Confirm`.
            schema_id: Schema by which the columns of the rows are called; the current one if None.
            where: Which of the rows with other keys are deleted; all if None.

        Raises:
            SchemaMismatch: Columns were renamed or dropped since ``schema_id``. Nothing was written.
            InvalidRequest: Rows belong to another bucket; or see :meth:`kvstore.Table.apply_epoch`. Nothing was
                written.
            UnsupportedOperation: A table of this kind can't be replaced.
        """
        self._reading.access.check_writable()
        definition = self._reading.current()
        if schema_id is not None:
            definition.check_names_of(SchemaId(integer("schema_id", schema_id)))
        number = None if epoch is None else integer_within("epoch", epoch, 0, OFFSET_MAX)
        whole = {}
        for bucket, changes in parts.items():
            if unknown := set(changes.rows.schema.names) - set(definition.schema.names):
                raise SchemaMismatch("The table has no such column.", unknown=sorted(unknown))
            belongs = definition.bucket_key is None or (buckets_of_rows(definition, changes.rows) == bucket).all()
            if bucket not in self._reading.buckets or not belongs:
                raise InvalidRequest("Rows belong to another bucket; see Table.by_bucket().", bucket=bucket)
            whole[bucket] = Changes(filled(changes.rows, definition.schema), changes.is_delete)

        def rest() -> dict[BucketId, Changes]:
            there = self._reading.rows(definition, definition.primary_key, where).read_all()
            deletes = _deletes_of_others(there, whole.values(), definition.schema)
            return dict(spread(definition, deletes, BucketId(0)))

        if replaces:
            self.check_replaceable(writes=bool(whole))
        others = rest if replaces else None
        return self._opened().writers.apply_epoch(definition, whole, writer, number, run, takeover, others, confirm)

    def check_replaceable(self, *, writes: bool = True) -> None:
        """Verify that a write can replace all rows.

        Args:
            writes: Whether it has rows; else it only deletes.

        Raises:
            UnsupportedOperation: The table has no key, merges rows, or takes no deletes.
        """
        definition = self._reading.current()
        options = definition.options
        merges = writes and options.merge_engine != "last_row"
        if definition.primary_key is None or merges or options.delete_behavior != "allow":
            raise UnsupportedOperation(
                "Only a table with a key, without a merge engine and with deletes allowed can be replaced; write rows "
                "of the same keys instead.",
                table=definition.name,
            )

    def fitting(self, changes: Changes, schema_id: int | None = None) -> Changes:
        """Changes with the columns of the table, as they are called now.

        Args:
            changes, schema_id: See :meth:`kvstore.Table.by_bucket`, also for errors.
        """
        definition = self._reading.current()
        id = definition.schema_id if schema_id is None else SchemaId(integer("schema_id", schema_id))
        return fitted(changes, definition, id, None, overwrite=False)[0]

    def row_indices_by_bucket(self, rows: pa.RecordBatch, other: int) -> list[tuple[BucketId, pa.Int64Array | None]]:
        """Indices of the rows of each bucket; None for all rows.

        Args:
            rows: Rows that fit the table.
            other: Bucket of all rows if the table has no bucket key.

        Raises:
            InvalidRequest: The table has no such bucket.
        """
        return list(row_indices_by_bucket(self._reading.current(), rows, self._reading.number_of(other)))

    def hold(self, consumer: str, offsets: Mapping[int, int]) -> None:
        """Like :meth:`kvstore.commit.consumers.Consumer.commit`, but expired changes are left out.

        Raises:
            UnsupportedOperation, StoreFull: See there.
        """
        self._reading.access.check_registers()
        self._reading.current()
        self._opened().consumers.hold(consumer, offsets)

    def lease(self, name: str, offsets: Mapping[int, int]) -> None:
        """Keep the log from these offsets on for an hour, as far as the log has it; a second call renews the lease.

        Nothing is written if, as far as is known, the log of this table never expires, or if the store is read-only.

        Args:
            name: Name of the lease; no other reader uses it.
        """
        self._reading.current()
        with suppress(UnsupportedOperation):
            self._reading.access.check_registers()
            self._opened().consumers.lease(name, offsets)


def _deletes_of_others(there: pa.Table, written: Iterable[Changes], schema: pa.Schema) -> Changes:
    """Deletes of the keys that are not written.

    Args:
        there: The key's columns of all rows.
        written: Rows of any schema of the table.
        schema: The current one.
    """
    names = there.schema.names
    kept = [pa.Table.from_batches([changes.rows.select(names)]).cast(there.schema) for changes in written]
    gone = there.join(pa.concat_tables(kept), names, join_type="left anti") if kept else there
    return Changes.deletes(one_batch(gone, there.schema), schema)
