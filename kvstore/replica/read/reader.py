"""Reads the changes and rows that :mod:`kvstore.replica.read.table` has located in the objects of a replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import CorruptData, InvalidRequest
from kvstore.log.segments import FoundBatch
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import changes_between, inserts_of
from kvstore.read.rebuilt_rows import TemporaryRows
from kvstore.replica.check import read_listed
from kvstore.replica.client import Client
from kvstore.replica.contents import batches_along, snapshot_parts
from kvstore.replica.read.parts import Changes, RangePart, Rows
from logformat.ids import Position
from logformat.log.batch import BatchHeader, decode_batch
from logformat.log.snapshot_manifest import decode_manifest
from logformat.replica.object_file import ObjectName

_ALIGNMENT = 64


@dataclass(frozen=True)
class ReplicaReader:
    """Reads a table of a replica."""

    client: Client
    store_id: UUID
    definition: TableDefinition

    def batches(self, ranges: Sequence[RangePart]) -> Iterator[tuple[BatchHeader, memoryview, ObjectName]]:
        """Batches of consecutive ranges, each with the name of its object.

        Raises:
            CorruptData: An object is damaged.
            ReplicaBehind: An object is gone, see :func:`read_listed`.
        """
        for each in ranges:
            content = read_listed(self.client, self.store_id, each.name, each.bytes)
            for header, data in batches_along([(content, each.until)], each.start):
                yield header, data, each.name

    def changes(
        self, wanted: Changes, columns: Sequence[str], *, whole_updates: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Read changes; like :meth:`kvstore.Table.changelog`.

        Raises:
            CorruptData: An object is damaged.
            ReplicaBehind: An object is gone, see :func:`read_listed`.
        """
        at: list[ObjectName] = []
        with _naming_object(at):
            yield from changes_between(
                *(self._found(wanted, at), self.definition, wanted.bucket, wanted.start, wanted.end, columns),
                whole_updates=whole_updates,
                validate=True,
            )

    def found(self, wanted: Changes) -> Iterator[FoundBatch]:
        """Batches with the wanted changes, valid to the last offset and string.

        Raises:
            CorruptData: An object is damaged.
            ReplicaBehind: An object is gone, see :func:`read_listed`.
        """
        at: list[ObjectName] = []
        with _naming_object(at):
            for each in self._found(wanted, at):
                decode_batch(each.data, self.definition.schema_of(each.header.schema_id))
                yield each

    def _found(self, wanted: Changes, at: list[ObjectName]) -> Iterator[FoundBatch]:
        """Batches with the wanted changes; ``at`` has the name of the object of the last one."""
        for header, data, name in self.batches(wanted.ranges):
            at[:] = [name]
            if header.next_offset > wanted.start and header.base_offset < wanted.end:
                yield FoundBatch(header, _aligned(data), Path(str(name)), Position(0))

    def record_count(self, wanted: Rows) -> int:
        """Number of records that were appended to a log table; raises what :meth:`changes` raises."""
        count = 0
        if wanted.snapshot is not None:
            parts = snapshot_parts(read_listed(self.client, self.store_id, *wanted.snapshot))
            count = decode_manifest(bytes(parts[0])).row_count
        return count + sum(
            header.record_count for header, _, _ in self.batches(wanted.ranges) if header.base_offset < wanted.end
        )

    def rows(
        self, wanted: Rows, columns: Sequence[str], filter: pc.Expression | None, directory: Path
    ) -> Iterator[pa.RecordBatch]:
        """Read rows; like :meth:`kvstore.Table.scan`. Rows that can't pass the filter may be left out.

        Args:
            directory: Directory with room for the rows during the read; nothing is left in it.

        Raises:
            CorruptData: An object is damaged.
            ReplicaBehind: An object is gone, see :func:`read_listed`.
            StoreFull, LogFailed: The disk is full or failed.
        """
        with self._rebuilt(wanted, directory) as rebuilt:
            yield from rebuilt.rows(columns, filter)

    def inserts(self, wanted: Rows, columns: Sequence[str], directory: Path) -> Iterator[pa.RecordBatch]:
        """Read the same rows as the inserts with which a changelog from ``full`` starts; raises the same errors."""
        columns_there = set(self.definition.schema.names)
        names = [name for name in columns if name in columns_there] or self.definition.primary_key
        assert names is not None
        with self._rebuilt(wanted, directory) as rebuilt:
            about = wanted.bucket, wanted.end, rebuilt.last_timestamp
            yield from inserts_of(rebuilt.rows(names), self.definition, *about, columns)

    @contextmanager
    def _rebuilt(self, wanted: Rows, directory: Path) -> Iterator[TemporaryRows]:
        with TemporaryRows(self.definition, wanted.bucket, directory) as rebuilt:
            self.load(rebuilt, wanted)
            yield rebuilt

    def load(self, rows: TemporaryRows, wanted: Rows) -> None:
        """Load the wanted rows into an empty index; raises what :meth:`rows` raises."""
        if wanted.snapshot is not None:
            with _naming_object([wanted.snapshot[0]]):
                parts = snapshot_parts(read_listed(self.client, self.store_id, *wanted.snapshot))
                rows.load(decode_manifest(bytes(parts[0])), parts[2])
        self.apply(rows, wanted.ranges, 0, wanted.end)

    def apply(self, rows: TemporaryRows, ranges: Sequence[RangePart], start: int, end: int) -> None:
        """Apply the changes from ``start`` to ``end`` (exclusive) in some ranges; raises what :meth:`rows` raises."""
        at: list[ObjectName] = []
        with _naming_object(at):
            for header, data, name in self.batches(ranges):
                at[:] = [name]
                if header.next_offset > start and header.base_offset < end:
                    rows.apply(_aligned(data), end)


@contextmanager
def _naming_object(at: Sequence[ObjectName]) -> Iterator[None]:
    """Add the name of the object to errors about its content. Content that does not fit the table is damage, too."""
    try:
        yield
    except CorruptData as error:
        if at:
            error.where.setdefault("object", str(at[0]))
        raise
    except InvalidRequest as error:
        raise CorruptData(
            "The content of an object does not fit the table.", object=str(at[0]) if at else "", reason=str(error)
        ) from error


def _aligned(data: memoryview) -> memoryview:
    """A batch at an address that Arrow can read: within an object it may begin at any byte."""
    if pa.py_buffer(data).address % _ALIGNMENT == 0:
        return data
    copy = memoryview(pa.allocate_buffer(len(data))).cast("B")
    copy[:] = data
    return copy.toreadonly()
