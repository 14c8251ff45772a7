"""Plans reads of a table in a replica in place: which objects have the wanted changes or rows.

* The objects are listed once. Later reads name them, so the result is the same whatever is shipped meanwhile.
* A hole is found before anything is read. A missing or damaged object is found when it is read.
* A table ends at a consistent cut, as in a restore.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

import msgspec

from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    MissingVersion,
    OffsetOutOfRange,
    ReplicaBehind,
)
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import milliseconds
from kvstore.replica.client import Client, ObjectStore
from kvstore.replica.coverage import ShippedPath, path_from, path_to, reached
from kvstore.replica.read.loading import LoadedTable
from kvstore.replica.read.parts import Changes, RangePart, Rows
from kvstore.replica.read.reader import ReplicaReader
from kvstore.replica.source import Source
from kvstore.request.partition import bound_in
from logformat.catalog.replicas import Shipped, Stream
from logformat.ids import BucketId, Offset
from logformat.replica.object_file import ObjectName

Start = Literal["full", "earliest", "latest"] | Mapping[int, int] | dt.datetime
End = Literal["latest"] | Mapping[int, int] | dt.datetime


@dataclass(frozen=True)
class _Bucket:
    """A bucket in a replica.

    Attributes:
        sizes: Its objects, with their sizes in bytes.
        end: The end of the table in it.
    """

    shipped: Shipped
    sizes: dict[ObjectName, int]
    end: int

    def range_parts(self, path: ShippedPath) -> list[RangePart]:
        parts, at = [], path.start
        for piece in path.pieces:
            parts.append(RangePart(piece.name, self.sizes[piece.name], at, piece.until))
            at = piece.until
        return parts


@dataclass(frozen=True)
class ReplicaTable:
    """A table as a replica had it when this object was created.

    Attributes:
        as_of_ms: Everything that was published at this time is there.
        what: What has the table, for messages.
    """

    url: str
    store_id: UUID
    definition: TableDefinition
    as_of_ms: int
    _buckets: tuple[_Bucket, ...]
    what: str = "replica"

    @classmethod
    def of(cls, url: str, name: str, client: Client | None = None) -> ReplicaTable:
        """The table of a name.

        Args:
            client: A client for the URL; None to create one.

        Raises:
            NotAStore: There is no replica.
            NoSuchTable: The replica has no such table, or it was dropped.
            MissingVersion: The replica has a hole, or its manifest is missing.
            ReplicaBehind: The replica has no consistent cut of the table.
            CorruptData: An object is damaged.
            Unavailable: The replica can't be reached.
        """
        loaded = LoadedTable.of(client if client is not None else ObjectStore(url), name)
        return cls.at(url, loaded.source, loaded.definition, loaded.cut().ends)

    @classmethod
    def at(cls, url: str, source: Source, definition: TableDefinition, ends: Mapping[Stream, int]) -> ReplicaTable:
        """A table that ends at the given offsets."""
        buckets = (_Bucket(source.shipped(stream), source.sizes(stream), end) for stream, end in ends.items())
        return cls(url, source.store.store_id, definition, source.manifest.as_of_ms, tuple(buckets))

    @classmethod
    def of_ranges(
        cls,
        url: str,
        store_id: UUID,
        definition: TableDefinition,
        as_of_ms: int,
        buckets: Sequence[tuple[Shipped, dict[ObjectName, int]]],
    ) -> ReplicaTable:
        """A shared table, of which the objects of each bucket are known, with their sizes in bytes."""
        tables_buckets = (_Bucket(shipped, sizes, shipped.end) for shipped, sizes in buckets)
        return cls(url, store_id, definition, as_of_ms, tuple(tables_buckets), "shared table")

    def ends(self) -> dict[int, int]:
        """The end of the table in each bucket."""
        return {bucket: each.end for bucket, each in enumerate(self._buckets)}

    def bounds(self) -> dict[int, tuple[Offset, Offset]]:
        """Where each bucket begins in the replica, and the end of the table in it."""
        return {bucket: (Offset(each.shipped.start), Offset(each.end)) for bucket, each in enumerate(self._buckets)}

    def offsets_as_of(self, as_of: int | Mapping[int, int] | dt.datetime) -> dict[int, int]:
        """For each bucket the offset before which the table was; see :meth:`kvstore.Table.offsets_as_of`.

        Raises:
            InvalidRequest: ``as_of`` is not valid.
            OffsetOutOfRange: The replica starts after it.
            ReplicaBehind: The replica ends before it.
        """
        offsets = {}
        for bucket, each in enumerate(self._buckets):
            offset = offsets[bucket] = self._offset("as_of", as_of, bucket)
            if isinstance(as_of, dt.datetime) and 0 < offset == each.shipped.start < each.end:
                # Changes before the start of the replica may be of that time or later.
                raise OffsetOutOfRange(f"The {self.what} starts after this time.", as_of=as_of, bucket=bucket)
        return offsets

    def offset_ranges(self, start: Start, end: End, *, fail_on_data_loss: bool = True) -> dict[int, tuple[int, int]]:
        """For each bucket the offsets from ``start``, inclusive, to ``end``, exclusive.

        Args:
            fail_on_data_loss: If false, a bucket that starts after an offset is read from its start.

        Raises:
            InvalidRequest: They are not valid, or ``end`` comes before ``start``, which for ``full`` is the end.
            OffsetOutOfRange: The replica starts after ``start``.
            ReplicaBehind: The replica ends before ``end``.
        """
        ranges = {}
        for bucket in range(len(self._buckets)):
            begin, stop = (
                self._offset(name, bound, bucket, clamped=not fail_on_data_loss)
                for name, bound in (("start", start), ("end", end))
            )
            if stop < begin:
                raise InvalidRequest(
                    "The end of a changelog does not come before its start, which for `full` is now.",
                    start=begin,
                    end=stop,
                )
            ranges[bucket] = begin, stop
        return ranges

    def changes(self, bucket: int, start: int, end: int) -> Changes:
        """Locate changes of a bucket.

        Raises:
            MissingVersion: The replica has a hole before ``end``.
        """
        source = self._buckets[bucket]
        ranges = []
        if start < end:
            path = path_from(start, end, source.sizes)
            if not path.pieces or path.pieces[-1].until < end:
                raise self._hole(bucket, end)
            # `start` may be within a commit.
            ranges = source.range_parts(replace(path, start=path.pieces[0].name.start))
        return Changes(BucketId(bucket), Offset(start), Offset(end), tuple(ranges))

    def rows(self, bucket: int, end: int) -> Rows:
        """Locate the rows of a bucket as of an offset, from the last snapshot that has a path to it.

        Raises:
            MissingVersion: The replica has a hole before ``end``, and no snapshot after the hole.
        """
        source = self._buckets[bucket]
        for start in sorted({source.shipped.start, *source.shipped.snapshots}, reverse=True):
            only = msgspec.structs.replace(source.shipped, start=start, snapshots=[])
            if start <= end and (path := path_to(end, only, source.sizes)) is not None:
                snapshot = None if path.snapshot is None else (path.snapshot, source.sizes[path.snapshot])
                return Rows(BucketId(bucket), Offset(end), snapshot, tuple(source.range_parts(path)))
        raise self._hole(bucket, end)

    def _offset(self, name: str, bound: object, bucket: int, *, clamped: bool = False) -> int:
        source = self._buckets[bucket]
        bound = bound_in(name, bound, BucketId(bucket), [BucketId(each) for each in range(len(self._buckets))])
        if isinstance(bound, str):
            return source.shipped.start if bound == "earliest" else source.end
        if isinstance(bound, dt.datetime):
            time_ms = milliseconds(bound)
            if time_ms > self.as_of_ms:
                raise ReplicaBehind(f"The {self.what} ends before this time.", as_of_ms=self.as_of_ms)
            return self.first_at_or_after(bucket, time_ms, ObjectStore(self.url))
        assert isinstance(bound, int)
        about = {"bucket": bucket, "offset": bound, "start": source.shipped.start, "end": source.shipped.end}
        if bound > source.shipped.end:
            raise ReplicaBehind(f"The {self.what} ends before this offset.", **about)
        if bound < source.shipped.start:
            if clamped:
                return source.shipped.start
            raise OffsetOutOfRange(
                f"The {self.what} starts after this offset, because older changes have expired; begin at `earliest`, "
                "or with the rows at `full`.",
                **about,
            )
        return bound

    def first_at_or_after(self, bucket: int, time_ms: int, client: Client) -> int:
        """Base offset of the first commit at or after a time (ms); the end of the table if there is none.

        Raises:
            MissingVersion, CorruptData, ReplicaBehind, Unavailable: An object can't be read.
        """
        source = self._buckets[bucket]
        ranges = self.changes(bucket, source.shipped.start, source.end).ranges
        reader = ReplicaReader(client, self.store_id, self.definition)

        def first_time(each: RangePart) -> int:
            for header, _, _ in reader.batches([each]):
                return header.commit_timestamp
            raise CorruptData("An object has none of the batches that it should have.", object=str(each.name))

        # If timestamps decrease somewhere, this finds the time in one of the ranges in which they increase.
        after = bisect_left(ranges, time_ms, key=first_time)
        for header, _, _ in reader.batches(ranges[max(after - 1, 0) : after]):
            if header.commit_timestamp >= time_ms:
                return min(header.base_offset, source.end)
        return ranges[after].start if after < len(ranges) else source.end

    def _hole(self, bucket: int, end: int) -> MissingVersion:
        source = self._buckets[bucket]
        return MissingVersion(
            f"The replica has a hole in bucket {bucket} of a table; run `kvstore replica repair` on its leader.",
            table=self.definition.name,
            missing_from=reached(source.shipped, source.sizes),
            before=end,
        )
