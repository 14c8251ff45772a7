"""A table of a replica that is opened in place, as of the newest manifest that was looked at.

* A call sees what the replica had at most :data:`REFRESH_SECONDS` before.
* Rows come from an index of their bucket, which is built when it is first needed: from the newest snapshot and the
  changes after it. Later changes are added to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kvstore.clock import Clock
from kvstore.log.segments import FoundBatch
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.writers import NamedWriter
from kvstore.read.rebuilt_rows import TemporaryRows
from kvstore.replica.client import Client
from kvstore.replica.read.parts import RangePart
from kvstore.replica.read.reader import ReplicaReader
from kvstore.replica.read.table import ReplicaTable
from kvstore.replica.read.tail import Tail
from logformat.ids import BucketId, Epoch, Offset, SchemaId, Sequence, WriterId

REFRESH_SECONDS = 1.0
"""Time between two looks at the replica: a leader ships about once a second."""


class _Version(NamedTuple):
    """What an index depends on besides the changes: another one makes it wrong.

    Attributes:
        leader_epoch: A later leader may lack changes of the one before, and have others at their offsets.
    """

    schema_id: SchemaId
    leader_epoch: Epoch | None


@dataclass
class _Built:
    """The index of a bucket.

    Attributes:
        uses: Number of views that are open.
        is_dropped: Whether it is to be closed with the last view.
    """

    rows: TemporaryRows
    version: _Version
    end: Offset
    uses: int = 0
    is_dropped: bool = False


@dataclass
class Indexes:
    """Indexes of an opened replica, in files without names; the least recently used ones go.

    Attributes:
        directory: Directory with room for them.
        bytes_max: Largest size of all of them, but for one that is larger by itself, or those that are being read.
    """

    directory: Path
    bytes_max: int
    built: dict[object, _Built] = field(default_factory=dict)

    def shrink(self) -> None:
        """Close indexes that were used least recently."""
        sizes = {key: each.rows.bytes() for key, each in self.built.items()}
        for key, each in list(self.built.items())[:-1]:
            if sum(sizes.values()) <= self.bytes_max:
                return
            if not each.uses:
                del sizes[key]
                self.drop(key)

    def drop(self, key: object) -> None:
        """Close an index, with its last view if there are some."""
        each = self.built.pop(key, None)
        if each is not None:
            each.is_dropped = True
            if not each.uses:
                each.rows.close()

    def close(self) -> None:
        """Close all."""
        for key in list(self.built):
            self.drop(key)


class FollowedTable:
    """A table of an opened replica; any thread may use it.

    Args:
        mutex: The lock of the opened replica.
        check_open: Refuses if the replica was closed.
        catalog: Returns the catalog of the replica, which has the names of writers; an empty one if it has none.
    """

    def __init__(
        self,
        tail: Tail,
        client: Client,
        indexes: Indexes,
        mutex: threading.RLock,
        clock: Clock,
        check_open: Callable[[], None],
        catalog: Callable[[], CatalogState],
    ) -> None:
        self._tail = tail
        self._client = client
        self._indexes = indexes
        self._mutex = mutex
        self._clock = clock
        self._check_open = check_open
        self._catalog = catalog
        self._is_still = False
        self._looked = clock.monotonic()
        self._timestamps: dict[int, tuple[int, int]] = {}

    @contextmanager
    def one_moment(self) -> Iterator[ReplicaTable]:
        """The table as of now; it does not change before the context ends."""
        self._check_open()
        with self._mutex:
            table, before = self.table(), self._is_still
            self._is_still = True
            try:
                yield table
            finally:
                self._is_still = before

    def table(self) -> ReplicaTable:
        """The table as of now.

        Raises:
            StoreClosed: The replica was closed.
            NoSuchTable, MissingVersion, ReplicaBehind, CorruptData, Unavailable: See :meth:`ReplicaTail.poll`.
        """
        self._check_open()  # in a child of a fork, the lock may be held for good
        with self._mutex:
            self._check_open()
            now = self._clock.monotonic()
            if not self._is_still and now - self._looked >= REFRESH_SECONDS:
                self._look(now)
            return self._tail.table

    def table_at(self, time_ms: int) -> ReplicaTable:
        """The table as of now; it is looked at again if that was last done before a time (ms)."""
        table = self.table()
        with self._mutex:
            if not self._is_still and table.as_of_ms < time_ms:
                self._look(self._clock.monotonic())
            return self._tail.table

    def _look(self, now: float) -> None:
        self._tail.poll()
        self._tail.tidy()
        self._looked = now

    @property
    def name(self) -> str:
        """Name of the table when it was last looked at, for messages."""
        return self._tail.table.definition.name

    @property
    def leader_epoch(self) -> Epoch | None:
        """Epoch of the leader that shipped what was last looked at; None if nothing leads."""
        return self._tail.leader_epoch

    def check_leader(self, bucket: BucketId, offset: Offset, leader_epoch: Epoch | None) -> None:
        """Verify that later leaders have the changes of a bucket before an offset.

        Raises:
            OffsetOutOfRange: One lacks some.
        """
        if leader_epoch is not None:
            before = {number: Offset(0) for number in self._tail.table.ends()} | {bucket: offset}
            self._tail.check_leader(before, leader_epoch)

    def definition(self) -> TableDefinition:
        """Definition of the table; raises what :meth:`table` raises."""
        return self.table().definition

    def state(self) -> CatalogState:
        """The catalog of the replica, as of a second ago."""
        with self._mutex:
            return self._catalog()

    def earlier_writers(self) -> dict[WriterId, tuple[str, NamedWriter]]:
        """None: of a replica, only the catalog as it is now is read."""
        return {}

    def commits(self) -> dict[tuple[WriterId, Sequence], str]:
        """None: of a replica, only the catalog as it is now is read."""
        return {}

    def last_timestamp(self, bucket: int) -> int:
        """Timestamp of the last commit of a bucket (ms); 0 if there is none."""
        with self._mutex:
            end = self.table().ends()[bucket]
            if self._timestamps.get(bucket, (-1, 0))[0] != end:
                self._timestamps[bucket] = end, self._tail.last_timestamp(bucket, end)
            return self._timestamps[bucket][1]

    def found(self, bucket: int, start: Offset, end: Offset) -> Iterator[FoundBatch]:
        """Verified batches that contain offsets from ``start`` to ``end`` (exclusive), in order."""
        with self._mutex:  # the names of objects change with each poll
            table = self.table()
            wanted = table.changes(bucket, start, end)
        return self._reader(table).found(wanted)

    def appended(self, bucket: BucketId) -> int:
        """Number of records of a log table's bucket."""
        with self.one_moment() as table:
            end = table.ends()[bucket]
            return self._reader(table).record_count(table.rows(bucket, end))

    def first_at_or_after(self, bucket: int, time_ms: int) -> int:
        """Base offset of the first commit at or after a time; the end of the table if there is none."""
        with self.one_moment() as table:
            return table.first_at_or_after(bucket, time_ms, self._client)

    @contextmanager
    def rows(self, bucket: BucketId) -> Iterator[TemporaryRows]:
        """The index of a bucket as of now.

        Raises:
            StoreFull, LogFailed: The disk has no room for it.
            StoreClosed, MissingVersion, ReplicaBehind, CorruptData, Unavailable: See :meth:`table`.
        """
        self._check_open()
        with self._mutex:
            built = self._built(self.table(), bucket)
            built.uses += 1
        try:
            yield built.rows
        finally:
            with self._mutex:
                built.uses -= 1
                if built.is_dropped and not built.uses:
                    built.rows.close()

    def _built(self, table: ReplicaTable, bucket: BucketId) -> _Built:
        key, end = (table.definition.id, bucket), Offset(table.ends()[bucket])
        version = _Version(table.definition.schema_id, self._tail.leader_epoch)
        built = self._indexes.built.pop(key, None)
        if built is not None:
            self._indexes.built[key] = built  # the last one used
            if built.version == version and built.end == end:
                return built
            # Changes after the end of the index may have expired.
            if built.version != version or not table.bounds()[bucket][0] <= built.end <= end:
                self._indexes.drop(key)
                built = None
        reader = self._reader(table)
        try:
            if built is None:
                wanted = table.rows(bucket, end)
                rows = TemporaryRows(table.definition, bucket, self._indexes.directory)
                built = self._indexes.built[key] = _Built(rows, version, end)
                reader.load(rows, wanted)
            else:
                ranges: tuple[RangePart, ...] = table.changes(bucket, built.end, end).ranges
                reader.apply(built.rows, ranges, built.end, end)
            built.rows.finish(end)
            built.end = end
        except BaseException:
            self._indexes.drop(key)  # it may have some of the changes only
            raise
        self._indexes.shrink()
        return built

    def _reader(self, table: ReplicaTable) -> ReplicaReader:
        return ReplicaReader(self._client, table.store_id, table.definition)
