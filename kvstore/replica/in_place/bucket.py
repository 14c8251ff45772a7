"""A bucket of a replica that is opened in place: what the reads of a table ask of a bucket's handle and of its log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Self

from kvstore.index.index import View
from kvstore.log.segments import FoundBatch, LogIdentity
from kvstore.replica.in_place.followed import FollowedTable
from logformat.ids import BucketId, Offset
from logformat.log.index_state import IndexState


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

    def rest(self) -> None:
        """It holds no files."""

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
    """The bucket: see :class:`kvstore.bucket.reads.BucketReads`. Changes are read without an index of its rows."""

    def __init__(self, followed: FollowedTable, identity: LogIdentity) -> None:
        self.identity = identity
        self.log = ReplicaLog(followed, identity.bucket_id)
        self._followed = followed

    @property
    def watched(self) -> None:
        """A replica is asked."""

    def for_one_reader(self) -> Self:
        """The bucket for one reader of changes: changes that a later leader lacks are OffsetOutOfRange for it."""
        reads = copy(self)
        reads.log = _ReadLog(self._followed, self.identity.bucket_id)
        return reads

    @contextmanager
    def snapshot(self) -> Iterator[View]:
        """A view as of now, to read many rows."""
        with self._followed.rows(self.identity.bucket_id) as rows, rows.view(scans=True) as view:
            yield view

    @contextmanager
    def latest(self) -> Iterator[View]:
        """A view as of now, to read a few rows."""
        with self._followed.rows(self.identity.bucket_id) as rows, rows.view() as view:
            yield view

    def memtable(self) -> None:
        """See :meth:`kvstore.bucket.reads.BucketReads.memtable`."""

    def value(self, key: bytes) -> bytes | None:
        """Value of a key; None if it is not there."""
        with self._followed.rows(self.identity.bucket_id) as rows:
            return rows.value(key)

    def committed(self) -> IndexState:
        """How far the bucket is."""
        with self._followed.one_moment() as table:
            end, last_ms = table.ends()[self.identity.bucket_id], self._followed.last_timestamp(self.identity.bucket_id)
            return IndexState(
                self.identity.table_id, self.identity.bucket_id, applied_offset=Offset(end), last_timestamp=last_ms
            )

    shown = committed

    def offsets(self) -> tuple[Offset, Offset]:
        """The first offset that the replica has, and the offset after its last."""
        start, end = self._followed.table().bounds()[self.identity.bucket_id]
        return Offset(start), Offset(end)

    def row_count(self) -> int:
        """Number of rows; of a log table, number of appended records. They are counted, which takes reading them."""
        if self._followed.definition().primary_key is None:
            return self._followed.appended(self.identity.bucket_id)
        with self.latest() as view:
            return view.row_count()
