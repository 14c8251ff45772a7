"""A bucket of a replica that is opened in place: what the reads of a table ask of a bucket's handle and of its log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from uuid import UUID

import pyarrow as pa

from kvstore.bucket.context import BucketPlace
from kvstore.bucket.handle import BucketHandle
from kvstore.index.index import View
from kvstore.log.segments import FoundBatch
from kvstore.read.changelog import End, Start
from kvstore.read.follow import ChangeReader
from kvstore.replica.in_place.followed import FollowedTable
from logformat.ids import BucketId, Offset, TableId
from logformat.log.index_state import IndexState


class ReplicaChangeReader(ChangeReader):
    """Reads changes, for which no index is built.

    A later leader that lacks changes that were read is OffsetOutOfRange.
    """

    def read(self, start: Start, end: End, *, follow: bool) -> Iterator[pa.RecordBatch | None]:
        """See :meth:`kvstore.read.follow.ChangeReader.read`."""
        handle = cast("ReplicaBucket", self.handle).for_one_reader().as_handle()
        return ChangeReader.read(replace(self, handle=handle), start, end, follow=follow)

    def _state(self) -> IndexState:
        return self.handle.committed()


class ReplicaLog:
    """The log of a bucket: what :class:`kvstore.log.segments.LogFiles` is of a store."""

    def __init__(self, followed: FollowedTable, bucket: BucketId) -> None:
        self._followed = followed
        self._bucket = bucket

    def start(self) -> Offset:
        """The first offset that the replica has."""
        return self._followed.table().bounds()[self._bucket][0]

    def batches(self, start: Offset, end: Offset) -> Iterator[FoundBatch]:
        """Batches that contain offsets from ``start`` to ``end`` (exclusive), in order; the first may begin earlier."""
        return self._followed.found(self._bucket, start, end)

    def first_at_or_after(self, timestamp: int, end: Offset) -> Offset:
        """Base offset of the first batch not older than a time (ms); ``end`` if all are."""
        return min(Offset(self._followed.first_at_or_after(self._bucket, timestamp)), end)


class _ReadLog(ReplicaLog):
    """The log as one reader of changes reads it, from one offset to the next."""

    def __init__(self, followed: FollowedTable, bucket: BucketId) -> None:
        super().__init__(followed, bucket)
        self._epoch = followed.leader_epoch

    def batches(self, start: Offset, end: Offset) -> Iterator[FoundBatch]:
        """See :meth:`ReplicaLog.batches`.

        Raises:
            OffsetOutOfRange: There is a later leader, which does not have all changes before ``start``.
        """
        with self._followed.one_moment():
            self._followed.check_leader(self._bucket, start, self._epoch)
            self._epoch = self._followed.leader_epoch
            return super().batches(start, end)


class ReplicaBucket:
    """The bucket: what :class:`kvstore.bucket.handle.BucketHandle` is of a store, for reads only."""

    def __init__(self, followed: FollowedTable, store_id: UUID, table: TableId, bucket: BucketId) -> None:
        self.place = BucketPlace.of(Path(), store_id, table, bucket)
        self.log: ReplicaLog = ReplicaLog(followed, bucket)
        self._followed = followed

    def for_one_reader(self) -> ReplicaBucket:
        """The same bucket, for one reader of changes."""
        found = copy(self)
        found.log = _ReadLog(self._followed, self.place.identity.bucket_id)
        return found

    def for_changes_only(self) -> ReplicaBucket:
        """The same bucket for reads of the past, which need no rows: no index is built for them."""
        identity = self.place.identity
        return _WithoutRows(self._followed, identity.store_id, identity.table_id, identity.bucket_id)

    def as_handle(self) -> BucketHandle:
        """This bucket, as the reads of a table are declared: they use only what this class has."""
        return cast("BucketHandle", self)

    @contextmanager
    def snapshot(self) -> Iterator[View]:
        """A view as of now, to read many rows."""
        with self._followed.rows(self.place.identity.bucket_id) as rows, rows.view(scans=True) as view:
            yield view

    @contextmanager
    def latest(self) -> Iterator[View]:
        """A view as of now, to read a few rows."""
        with self._followed.rows(self.place.identity.bucket_id) as rows, rows.view() as view:
            yield view

    def value(self, key: bytes) -> bytes | None:
        """Value of a key; None if it is not there."""
        with self._followed.rows(self.place.identity.bucket_id) as rows:
            return rows.value(key)

    def committed(self) -> IndexState:
        """How far the bucket is."""
        table, bucket = self.place.identity.table_id, self.place.identity.bucket_id
        with self._followed.one_moment() as found:
            end, last_ms = Offset(found.ends()[bucket]), self._followed.last_timestamp(bucket)
            return IndexState(table, bucket, applied_offset=end, last_timestamp=last_ms)


@dataclass(frozen=True)
class _Ends:
    """What a view says of how far a bucket is."""

    as_of: IndexState

    def state(self) -> IndexState:
        return self.as_of


class _WithoutRows(ReplicaBucket):
    """A bucket whose views have no rows."""

    @contextmanager
    def snapshot(self) -> Iterator[View]:
        """A view that says how far the bucket is."""
        yield cast("View", _Ends(self.committed()))
