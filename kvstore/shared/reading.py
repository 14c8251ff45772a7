"""Reads of a shared table as a table of a replica: its objects are those of a replica, and an epoch names them.

* A table ends at an epoch, so no commit over several buckets is in it in part.
* A poll lists the epochs from the one that is known on, and reads the last of them. So its requests do not depend on
  how many epochs or ranges there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from heapq import merge
from itertools import groupby, takewhile
from operator import attrgetter, itemgetter

from kvstore.clock import Clock
from kvstore.replica.read.reader import ReplicaReader
from kvstore.replica.read.table import ReplicaTable
from kvstore.shared.table import SharedTable
from logformat.ids import Epoch, Offset
from logformat.replica.shared_table import SharedEpoch, SharedRange


class SharedTail:
    """The newest state of a shared table; see :class:`kvstore.replica.read.tail.Tail`.

    Attributes:
        table: The table as of the last poll.

    Raises:
        MissingVersion, CorruptData, Unavailable: See :meth:`SharedTable.newest`.
    """

    table: ReplicaTable

    def __init__(self, shared: SharedTable, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        now_ms = clock.now_ms()
        self._take(shared.newest(), now_ms)

    @property
    def leader_epoch(self) -> Epoch | None:
        """None: nothing leads, and a later epoch has all changes of those before."""
        return None

    def poll(self) -> ReplicaTable:
        """Take the newest epoch.

        Raises:
            MissingVersion, CorruptData, Unavailable: See :meth:`SharedTable.newest`. The next poll continues.
        """
        now_ms, epoch = self._clock.now_ms(), self._epoch.epoch
        number = self._shared.newest_number(epoch)
        if number != epoch:
            self._take(self._shared.epoch(number) or self._shared.newest(), now_ms)
        else:
            self.table = replace(self.table, as_of_ms=max(now_ms + 1, self.table.as_of_ms))
        return self.table

    def check_leader(self, offsets: dict[int, Offset], leader_epoch: Epoch) -> None:
        """Nothing leads."""

    def forget(self, before: dict[int, Offset]) -> None:
        """The newest epoch names all objects, so there is nothing to be forgotten."""

    def tidy(self) -> None:
        """The newest epoch names all objects, and only those."""

    def commit_end(self, bucket: int, start: Offset, end: Offset, records: int) -> Offset:
        """The end of a read of whole commits from ``start``: at most ``records`` changes, but at least one commit.

        Args:
            start, end: Ends of commits.

        Raises:
            MissingVersion, CorruptData, ReplicaBehind, Unavailable: The range at that place can't be read.
        """
        if end - start <= records:
            return end
        wanted = self.table.changes(bucket, start + records, start + records + 1)
        for header, _, _ in self._reader().batches(wanted.ranges):
            if header.next_offset > start + records:
                return header.base_offset if header.base_offset > start else header.next_offset
        return end

    def whole_ends(
        self, before: Mapping[int, Offset], ends: Mapping[int, Offset], records: int
    ) -> tuple[dict[int, Offset], bool]:
        """Ends of a read that has each write whole; see :meth:`kvstore.replica.read.tail.Tail.whole_ends`.

        Ranges that were published, or that an earlier version wrote, do not say of which write they are.
        """
        left = {bucket: self._ranges(bucket, offset, ends[bucket]) for bucket, offset in before.items()}
        unknown = {bucket: list(takewhile(lambda each: each.epoch is None, found)) for bucket, found in left.items()}
        if any(unknown.values()):
            return {b: Offset(found[-1].end) if found else before[b] for b, found in unknown.items()}, False
        in_order = merge(*([(each.epoch, bucket, each) for each in ranges] for bucket, ranges in left.items()))
        taken, count = dict(before), 0
        for _, found in groupby(in_order, key=itemgetter(0)):
            write = {bucket: each for _, bucket, each in found}
            more = sum(each.end - max(each.start, before[bucket]) for bucket, each in write.items())
            if count and count + more > records:
                break
            taken |= {bucket: Offset(each.end) for bucket, each in write.items()}
            count += more
        return taken, True

    def _ranges(self, bucket: int, start: int, end: int) -> list[SharedRange]:
        """Ranges of a bucket with changes from an offset to the end of a range."""
        ranges, by_end = self._epoch.ranges[bucket], attrgetter("end")
        return ranges[bisect_right(ranges, start, key=by_end) : bisect_right(ranges, end, key=by_end)]

    def last_timestamp(self, bucket: int, end: int) -> int:
        """Timestamp of the last commit before an offset (ms); 0 if there is none.

        Raises:
            MissingVersion, CorruptData, ReplicaBehind, Unavailable: The object with that commit can't be read.
        """
        ranges = self.table.changes(bucket, end - 1, end).ranges if end else ()  # they begin at offset 0
        headers = [header for header, _, _ in self._reader().batches(ranges) if header.base_offset < end]
        return headers[-1].commit_timestamp if headers else 0

    def _reader(self) -> ReplicaReader:
        return ReplicaReader(self._shared.client, self.table.store_id, self.table.definition)

    def _take(self, epoch: SharedEpoch, now_ms: int) -> None:
        table = self._shared.at(epoch)
        self._epoch = epoch
        # The table is as of the time at which it was looked at; the time of now is rounded up where it is given.
        self.table = replace(table, as_of_ms=max(now_ms + 1, table.as_of_ms))
