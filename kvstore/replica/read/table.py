"""A table of a replica, read where it is: which objects hold what is wanted, and what is in them.

* What there is is found out once. What is read then are objects by name: the same ones, whatever is shipped meanwhile.
* A hole is found before anything is read; an object that is gone, or not what it should be, when it is its turn.
* A table ends where all its buckets have the same commits over several of them, as in a restore.
* Whoever plans and whoever reads may be different processes: what one tells the other is plain data.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    MissingVersion,
    NoSuchTable,
    OffsetOutOfRange,
    ReplicaBehind,
)
from kvstore.log.segments import FoundBatch
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.read.changelog import changes_between, inserts_of, milliseconds
from kvstore.read.rebuilt_rows import TemporaryRows
from kvstore.replica.check import read_object
from kvstore.replica.client import Client, ObjectStore
from kvstore.replica.contents import batches_along, snapshot_parts
from kvstore.replica.coverage import ShippedPath, path_to, reached
from kvstore.replica.source import Source, check_table
from kvstore.request.partition import place_in
from logformat.catalog.edits import BeginCommit, EndCommit
from logformat.catalog.replicas import CATALOG, Shipped, Stream
from logformat.ids import BucketId, Offset, Position, Sequence as SequenceNumber, WriterId
from logformat.log.batch import BatchHeader
from logformat.log.snapshot_manifest import decode_manifest
from logformat.replica.object_file import FoundObject, ObjectName

Start = Literal["full", "earliest", "latest"] | Mapping[int, int] | dt.datetime
End = Literal["latest"] | Mapping[int, int] | dt.datetime

SLACK_MS = 60_000
"""By how much the clock of a leader may have been set back while one commit was under way."""
_UNKNOWN_MS = 3_600_000
"""How long a commit may take of which the catalog does not say when it began and ended."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range, as far as it is read.

    Attributes:
        bytes: Of the object.
        start, until: Changes from here on, before there; commits end at both.
    """

    name: ObjectName
    bytes: int
    start: int
    until: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one bucket from ``start`` on, before ``end``, and where they are."""

    bucket: BucketId
    start: Offset
    end: Offset
    ranges: tuple[Stretch, ...]

    @property
    def bytes(self) -> int:
        """Of the objects."""
        return sum(each.bytes for each in self.ranges)

    def pieces(self, parts: int) -> list[Changes]:
        """The same in ``parts`` of about one size, or fewer: no object is in two."""
        cuts: list[int] = []
        done, total = 0, self.bytes
        for number, each in enumerate(self.ranges[:-1], 1):
            done += each.bytes
            if done * parts >= total * (len(cuts) + 1):
                cuts.append(number)
        pairs = zip([0, *cuts], [*cuts, len(self.ranges)], strict=True)
        return [self.of(self.ranges[first:last]) for first, last in pairs if first < last]

    def of(self, ranges: tuple[Stretch, ...]) -> Changes:
        """Those in some of the ranges, which follow each other."""
        start, end = max(self.start, ranges[0].start), min(self.end, ranges[-1].until)
        return Changes(self.bucket, Offset(start), Offset(end), ranges)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one bucket as of ``end``: the snapshot they begin with, and its bytes; and the changes behind it."""

    bucket: BucketId
    end: Offset
    snapshot: tuple[ObjectName, int] | None
    ranges: tuple[Stretch, ...]

    @property
    def bytes(self) -> int:
        """Of the objects."""
        return sum(each.bytes for each in self.ranges) + (self.snapshot[1] if self.snapshot is not None else 0)


@dataclass(frozen=True)
class _Bucket:
    """What there is of a bucket.

    Attributes:
        sizes: Its objects and their bytes.
        end: Where the table ends in it.
    """

    told: Shipped
    sizes: dict[ObjectName, int]
    end: int

    def stretches(self, way: ShippedPath) -> list[Stretch]:
        found, at = [], way.start
        for piece in way.pieces:
            found.append(Stretch(piece.name, self.sizes[piece.name], at, piece.until))
            at = piece.until
        return found


@dataclass(frozen=True)
class ReplicaTable:
    """A table as a replica had it when this was made.

    Attributes:
        as_of_ms: Everything that was published then is there.
    """

    url: str
    store_id: UUID
    definition: TableDefinition
    as_of_ms: int
    _buckets: tuple[_Bucket, ...]

    @classmethod
    def of(cls, url: str, name: str, client: Client | None = None) -> ReplicaTable:
        """A table by its name.

        Args:
            client: Of the URL.

        Raises:
            NotAStore: There is no replica.
            NoSuchTable: It has no such table, or not any more.
            MissingVersion: It has a hole in the catalog, or does not say up to where it goes.
            CorruptData: What it says is damaged.
            Unavailable: It can't be reached.
        """
        source = Source(client if client is not None else ObjectStore(url))
        catalog = _Catalog(source)
        definition = catalog.state.table(name)
        if definition is None:
            there = sorted(table.name for table in catalog.state.tables.values())
            raise NoSuchTable("The replica has no such table.", table=name, tables=there)
        check_table(definition)
        streams = [Stream(definition.id, BucketId(bucket)) for bucket in range(definition.buckets)]
        told = {stream: source.shipped(stream).end for stream in streams}
        for stream, end in told.items():
            source.way(stream, end)
        ends = _consistent_cut(source, catalog, definition, told)
        buckets = (_Bucket(source.shipped(stream), source.sizes(stream), ends[stream]) for stream in streams)
        return cls(url, source.store.store_id, definition, source.told.as_of_ms, tuple(buckets))

    def ends(self) -> dict[int, int]:
        """For each bucket the offset before which the table is."""
        return {bucket: each.end for bucket, each in enumerate(self._buckets)}

    def offsets_as_of(self, as_of: int | Mapping[int, int] | dt.datetime) -> dict[int, int]:
        """For each bucket the offset before which lies what there was; see :meth:`kvstore.Table.offsets_as_of`.

        Raises:
            InvalidRequest: It is no place.
            OffsetOutOfRange: The replica does not reach back so far.
            ReplicaBehind: It does not reach so far.
        """
        found = {}
        for bucket, each in enumerate(self._buckets):
            offset = found[bucket] = self._offset("as_of", as_of, bucket)
            if isinstance(as_of, dt.datetime) and 0 < offset == each.told.start < each.end:
                # What it does not have may be of that time or later.
                raise OffsetOutOfRange("The replica does not reach back to this time.", as_of=as_of, bucket=bucket)
        return found

    def offset_ranges(self, start: Start, end: End, *, fail_on_data_loss: bool = True) -> dict[int, tuple[int, int]]:
        """For each bucket the offsets from ``start`` on, before ``end``.

        Args:
            fail_on_data_loss: If false, and the replica begins behind an offset, begin there.

        Raises:
            InvalidRequest: They are no places, or ``end`` comes before ``start``, which for ``full`` is the end.
            OffsetOutOfRange: The replica does not reach back so far.
            ReplicaBehind: It does not reach so far.
        """
        found = {}
        for bucket in range(len(self._buckets)):
            first, last = (
                self._offset(name, place, bucket, clamped=not fail_on_data_loss)
                for name, place in (("start", start), ("end", end))
            )
            if last < first:
                raise InvalidRequest(
                    "The end of a changelog does not come before its start, which for `full` is now.",
                    start=first,
                    end=last,
                )
            found[bucket] = first, last
        return found

    def changes(self, bucket: int, start: int, end: int) -> Changes:
        """Changes of a bucket, and where they are.

        Raises:
            MissingVersion: The replica has a hole before ``end``.
        """
        there = self._buckets[bucket]
        ranges = []
        if start < end:
            way = path_to(end, there.told, there.sizes)
            if way is None or way.start > start:
                raise self._hole(bucket, end)
            ranges = [each for each in there.stretches(way) if each.until > start]
        return Changes(BucketId(bucket), Offset(start), Offset(end), tuple(ranges))

    def rows(self, bucket: int, end: int) -> Rows:
        """Rows of a bucket as of an offset, and where they are: behind the last snapshot from which there is a way.

        Raises:
            MissingVersion: The replica has a hole before ``end``, and no snapshot behind it.
        """
        there = self._buckets[bucket]
        for start in sorted({there.told.start, *there.told.snapshots}, reverse=True):
            only = msgspec.structs.replace(there.told, start=start, snapshots=[])
            if start <= end and (way := path_to(end, only, there.sizes)) is not None:
                snapshot = None if way.snapshot is None else (way.snapshot, there.sizes[way.snapshot])
                return Rows(BucketId(bucket), Offset(end), snapshot, tuple(there.stretches(way)))
        raise self._hole(bucket, end)

    def _offset(self, name: str, place: object, bucket: int, *, clamped: bool = False) -> int:
        there = self._buckets[bucket]
        place = place_in(name, place, BucketId(bucket), [BucketId(each) for each in range(len(self._buckets))])
        if isinstance(place, str):
            return there.told.start if place == "earliest" else there.end
        if isinstance(place, dt.datetime):
            time_ms = milliseconds(place)
            if time_ms > self.as_of_ms:
                raise ReplicaBehind("The replica does not reach this time yet.", as_of_ms=self.as_of_ms)
            return self._first_at_or_after(bucket, time_ms)
        assert isinstance(place, int)
        about = {"bucket": bucket, "offset": place, "start": there.told.start, "end": there.told.end}
        if place > there.told.end:
            raise ReplicaBehind("The replica does not reach this offset.", **about)
        if place < there.told.start:
            if clamped:
                return there.told.start
            raise OffsetOutOfRange("The replica does not reach back to this offset.", **about)
        return place

    def _first_at_or_after(self, bucket: int, time_ms: int) -> int:
        """Where the first commit at or after a time begins; where the table ends if there is none."""
        there = self._buckets[bucket]
        ranges = self.changes(bucket, there.told.start, there.end).ranges
        reader = ReplicaReader(ObjectStore(self.url), self.store_id, self.definition)

        def first_time(each: Stretch) -> int:
            for header, _, _ in reader.batches([each]):
                return header.commit_timestamp
            raise CorruptData("An object has nothing of what it should have.", object=str(each.name))

        # Where timestamps went back, this finds the time in one of the stretches in which they rise.
        after = bisect_left(ranges, time_ms, key=first_time)
        for header, _, _ in reader.batches(ranges[max(after - 1, 0) : after]):
            if header.commit_timestamp >= time_ms:
                return min(header.base_offset, there.end)
        return ranges[after].start if after < len(ranges) else there.end

    def _hole(self, bucket: int, end: int) -> MissingVersion:
        there = self._buckets[bucket]
        return MissingVersion(
            f"The replica has a hole in bucket {bucket} of a table; run `kvstore replica repair` where its leader is.",
            table=self.definition.name,
            missing_from=reached(there.told, there.sizes),
            before=end,
        )


@dataclass(frozen=True)
class ReplicaReader:
    """Reads what a :class:`ReplicaTable` has found."""

    client: Client
    store_id: UUID
    definition: TableDefinition

    def batches(self, ranges: Sequence[Stretch]) -> Iterator[tuple[BatchHeader, memoryview, ObjectName]]:
        """Batches of some ranges that follow each other, each with the object it is in.

        Raises:
            CorruptData: An object is gone, or not what it should be.
        """
        for each in ranges:
            found = read_object(self.client, self.store_id, each.name, each.bytes)
            for header, data in batches_along([(found, each.until)], each.start):
                yield header, data, each.name

    def changes(
        self, wanted: Changes, columns: Sequence[str], *, whole_updates: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Like :meth:`kvstore.Table.changelog`.

        Raises:
            CorruptData: An object is gone, or not what it should be.
        """
        at: list[ObjectName] = []

        def found() -> Iterator[FoundBatch]:
            for header, data, name in self.batches(wanted.ranges):
                at[:] = [name]
                if header.next_offset > wanted.start and header.base_offset < wanted.end:
                    yield FoundBatch(header, _aligned(data), Path(str(name)), Position(0))

        with _named(at):
            yield from changes_between(
                *(found(), self.definition, wanted.bucket, wanted.start, wanted.end, columns),
                whole_updates=whole_updates,
                validate=True,
            )

    def rows(
        self, wanted: Rows, columns: Sequence[str], filter: pc.Expression | None, directory: Path
    ) -> Iterator[pa.RecordBatch]:
        """Like :meth:`kvstore.Table.scan`; with a filter, rows for which it can't be true may be left out.

        Args:
            directory: Where there is room for the rows while they are read; nothing of them stays.

        Raises:
            CorruptData: An object is gone, or not what it should be.
            StoreFull, LogFailed: The disk refuses.
        """
        with self._made(wanted, directory) as made:
            yield from made.rows(columns, filter)

    def inserts(self, wanted: Rows, columns: Sequence[str], directory: Path) -> Iterator[pa.RecordBatch]:
        """The same rows, as the changelog shows them that starts at ``full``; and the same errors."""
        names = [name for name in columns if name in self.definition.schema.names] or self.definition.primary_key
        assert names is not None
        with self._made(wanted, directory) as made:
            about = wanted.bucket, wanted.end, made.last_timestamp
            yield from inserts_of(made.rows(names), self.definition, *about, columns)

    @contextmanager
    def _made(self, wanted: Rows, directory: Path) -> Iterator[TemporaryRows]:
        with TemporaryRows(self.definition, wanted.bucket, directory) as made:
            at: list[ObjectName] = []
            with _named(at):
                if wanted.snapshot is not None:
                    at[:] = [wanted.snapshot[0]]
                    parts = snapshot_parts(read_object(self.client, self.store_id, *wanted.snapshot))
                    made.load(decode_manifest(bytes(parts[0])), parts[2])
                for header, data, name in self.batches(wanted.ranges):
                    at[:] = [name]
                    if header.base_offset < wanted.end:
                        made.apply(_aligned(data), wanted.end)
            yield made


@contextmanager
def _named(at: Sequence[ObjectName]) -> Iterator[None]:
    """Say of what is damaged in which object it is; what does not fit the table is damage too."""
    try:
        yield
    except CorruptData as error:
        if at:
            error.where.setdefault("object", str(at[0]))
        raise
    except InvalidRequest as error:
        raise CorruptData(
            "What an object holds does not fit the table.", object=str(at[0]) if at else "", reason=str(error)
        ) from error


def _aligned(data: memoryview) -> memoryview:
    """A batch where Arrow may look at it: in an object it stands anywhere."""
    if pa.py_buffer(data).address % _ALIGNMENT == 0:
        return data
    copy = memoryview(pa.allocate_buffer(len(data))).cast("B")
    copy[:] = data
    return copy.toreadonly()


Commit = tuple[WriterId, SequenceNumber]


class _Catalog:
    """The catalog of a replica, and which commits over several buckets there were.

    Attributes:
        image_ms: When the image was made that it begins with; None if it begins with nothing.
    """

    def __init__(self, source: Source) -> None:
        way = source.way(CATALOG, source.shipped(CATALOG).end)
        self.state, self.image_ms = CatalogState(), None
        if way.snapshot is not None:
            head, self.state = source.image(way.snapshot)
            self.image_ms = head.created_ms
        self._begun: dict[str, tuple[int, Commit, int]] = {
            each.commit_id: (table, (each.writer_id, each.sequence), 0)
            for table, writers in self.state.writers.items()
            for each in writers.commits
        }
        self._ended: dict[str, int] = {}
        for edit in source.edits(way):
            payload = edit.payload
            if isinstance(payload, BeginCommit):
                begun = payload.table_id, (payload.writer_id, payload.sequence), edit.time_ms
                self._begun[payload.commit_id] = begun
            elif isinstance(payload, EndCommit):
                self._ended[payload.commit_id] = edit.time_ms
            self.state = self.state.after(edit)

    def commits_since(self, time_ms: int, table: TableDefinition) -> dict[Commit, int]:
        """Those of a table that had not ended at a time, in the order they began, and when that was (ms)."""
        return {
            commit: began
            for id, (of, commit, began) in self._begun.items()
            if of == table.id and self._ended.get(id, time_ms) >= time_ms
        }


def _consistent_cut(
    source: Source, catalog: _Catalog, definition: TableDefinition, ends: dict[Stream, int]
) -> dict[Stream, int]:
    """The same or earlier ends, at which every bucket has the same commits over all of them.

    These take place one after the other, and each is in the catalog before it is in a bucket. So only those can be torn
    that had not ended when it was noted how far the buckets are, and no more is read than what came after the first.
    """
    if len(ends) == 1:
        return ends
    since = source.told.as_of_ms - SLACK_MS
    commits = catalog.commits_since(since, definition)
    if catalog.image_ms is not None and catalog.image_ms >= since:
        commits = _commits_after(source, catalog, definition, ends, since - _UNKNOWN_MS) | commits
    if not commits:
        return ends
    begins = {stream: _begins(source, stream, end, commits) for stream, end in ends.items()}
    for commit in commits:
        if any(commit not in of for of in begins.values()):
            cut = {stream: of[commit] for stream, of in begins.items() if commit in of}
            if None in cut.values():
                raise ReplicaBehind(
                    "No moment of the replica has the same commits in all buckets; try again, or a later moment.",
                    writer_id=commit[0],
                )
            return ends | {stream: begin for stream, begin in cut.items() if begin is not None}
    return ends


def _commits_after(
    source: Source, catalog: _Catalog, definition: TableDefinition, ends: Mapping[Stream, int], time_ms: int
) -> dict[Commit, int]:
    """The same, by what is in the buckets after a time: the catalog begins with an image that does not tell."""
    named = catalog.state.writers_of(definition.id).named.values()
    writers = {each.writer_id for each in named if each.kind == "epochs"}
    longest: list[Commit] = []
    for stream, end in ends.items() if writers else ():
        found = [
            (header.writer_id, header.batch_sequence)
            for header in _backwards(source, stream, end, time_ms)
            if header.writer_id in writers
        ]
        longest = max(longest, found, key=len)
    return dict.fromkeys(reversed(longest), time_ms)


def _begins(source: Source, stream: Stream, end: int, commits: Mapping[Commit, int]) -> dict[Commit, int | None]:
    """Where in a bucket those commits begin that it has; None if that is in the snapshot it begins with."""
    found: dict[Commit, int | None] = {}
    for header in _backwards(source, stream, end, min(commits.values()) - SLACK_MS):
        if (commit := (header.writer_id, header.batch_sequence)) in commits:
            found[commit] = header.base_offset
            if len(found) == len(commits):
                return found
    way = source.way(stream, end)
    since = min(commits.values()) - SLACK_MS
    if way.snapshot is not None and source.manifest(way.snapshot).last_timestamp >= since:
        last = source.last_sequences(way.snapshot)
        for writer, sequence in commits:
            if last.get(writer, -1) >= sequence:
                found.setdefault((writer, sequence), None)
    return found


def _backwards(source: Source, stream: Stream, end: int, time_ms: int) -> Iterator[BatchHeader]:
    """Batches of a bucket from an end back to a time."""
    way = source.way(stream, end)
    starts = [way.start, *(piece.until for piece in way.pieces)]
    for start, piece in reversed(list(zip(starts, way.pieces, strict=False))):
        objects: Iterable[tuple[FoundObject, int]] = [(source.read(piece.name), min(end, piece.until))]
        for header, _ in reversed(list(batches_along(objects, start))):
            if header.commit_timestamp < time_ms:
                return
            yield header
