"""Mends the log of a bucket whose lock is held: segments that are damaged or missing are written anew.

* Batches are taken as they are: from the files, wherever a whole one stands where it belongs, and from a replica. Only
  a chain counts, in which each begins where the one before ends.
* A segment has its name only once it is whole and durable; a copy of the damaged one was put aside before.
* A segment that can't be had as a whole stays as it is: what it lacks is a hole. Nothing is cut off here.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from kvstore.bucket.context import BucketPlace
from kvstore.bucket.snapshot import Snapshot
from kvstore.errors import CorruptData, UnsupportedVersion
from kvstore.files import Files, names_in, read_file
from kvstore.log.segments import LogEnd
from kvstore.log.writer_state import WriterStates
from kvstore.repair.quarantine import Quarantine
from kvstore.repair.scan import Place, ScannedSegment, mapped, scan_segment
from kvstore.repair.source import Source
from logformat import paths
from logformat.catalog.replicas import Stream
from logformat.ids import OFFSET_MAX, Offset, Position
from logformat.log import sparse_index
from logformat.log.batch import BatchHeader
from logformat.log.segment import HEAD_BYTES, NO_OFFSET, START, SegmentHead, encode_head
from logformat.log.sparse_index import Entry
from logformat.log.writer_entry import WRITERS_BYTES_MAX, decode_snapshot


@dataclass
class LogEvidence:
    """What else knows of a log.

    Attributes:
        end: All before this offset was durable.
        bases: Offsets at which a segment begins, unless the log begins behind it.
        snapshots: Those that are right, the oldest first.
        has_rows: Asks whether there is an index that has the rows it should have; that takes a while.
        has_state: Whether an index, if only what is left of one, says up to where the log was durable. Without it a
            batch that was damaged at the end of the log is not told from one that was never finished.
        accepts_unknown: Whether the log may end there all the same.
    """

    end: Offset = Offset(0)
    bases: set[Offset] = field(default_factory=set)
    snapshots: list[Snapshot] = field(default_factory=list)
    has_rows: Callable[[], bool] = lambda: False
    has_state: bool = False
    accepts_unknown: bool = False

    def can_begin_at(self, start: Offset) -> bool:
        """Whether nothing before an offset of the log is needed."""
        return not start or any(each.log_end.base >= start for each in self.snapshots) or self.has_rows()


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that nothing has: from ``start`` on, before ``end``.

    Attributes:
        base: The segment they are of.
        is_end: Whether this is where the log ends; as far as is known it ended at ``end``. If that is ``start``,
            nothing says that anything is gone, nor that nothing is.
    """

    start: Offset
    end: Offset
    base: Offset
    is_end: bool

    @property
    def is_unknown_end(self) -> bool:
        """Whether it is only that nobody knows whether the log went on."""
        return self.is_end and self.start == self.end

    def __str__(self) -> str:
        """Which offsets, in words."""
        if self.start == self.end:
            return f"what was behind offset {self.start}, if there was anything"
        return f"offsets {self.start} to {self.end - 1}" + " at least" * self.is_end


@dataclass
class RepairedLog:
    """How a log is by now.

    Attributes:
        bases: Its segments.
        end: Up to where it goes, if there is no hole.
        holes: In order.
        mended: What was mended, a sentence each.
    """

    bases: list[Offset] = field(default_factory=list)
    end: Offset = Offset(0)
    holes: list[Hole] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Written:
    """A segment as it is, or as it was written beside its place."""

    end: LogEnd
    entries: list[Entry]
    headers: list[BatchHeader]
    from_replica: int = 0


class LogRepair:
    """Mends one log.

    Args:
        place: The bucket; its directory is there.
        source: A replica, if there is one.
    """

    def __init__(
        self, place: BucketPlace, known: LogEvidence, files: Files, quarantine: Quarantine, source: Source | None = None
    ) -> None:
        self._place = place
        self._known = known
        self._files = files
        self._quarantine = quarantine
        self._source = source
        self._track = Stream(place.identity.table_id, place.identity.bucket_id)
        self._segments: dict[Offset, ScannedSegment] = {}
        self._pool: dict[Offset, Place] = {}
        self._log = RepairedLog()
        self._writers: WriterStates | None = None
        self._heads_due: list[tuple[Offset, Offset | None, SegmentHead]] = []

    def repair(self) -> RepairedLog:
        """Write anew what can be; and what is made of the log.

        Raises:
            CorruptData: What is there contradicts itself, or the replica. What was mended stays so.
            UnsupportedVersion: A newer version wrote something.
            NotAStore: In the place of the log's directory is something else.
            Unavailable: The replica can't be reached.
            OSError: The disk refuses.
        """
        names = names_in(self._place.log)
        if not self._place.log.is_dir():
            self._files.make_directory(self._place.log)
        for base in sorted(base for name in names if (base := paths.segment_base(name)) is not None):
            self._segments[base] = scan_segment(self._place.log, base, self._place.identity)
        strays = {base for name in names if (base := paths.sparse_index_base(name)) is not None}
        bases = self._log.bases = self._bases(strays)
        self._fill_pool(bases)
        self._mend_segments(bases)
        return self._log

    def move_to_quarantine(self, base: Offset) -> None:
        """Move a segment away, with all that belongs to it.

        Raises:
            OSError: The disk refuses.
        """
        for path in (
            paths.segment_file(self._place.log, base),
            paths.sparse_index_file(self._place.log, base),
            paths.writers_file(self._place.log, base),
        ):
            if path.exists():
                self._quarantine.move(path)
        self._segments.pop(base, None)

    def begin_at(self, offset: Offset, stop: Offset | None) -> None:
        """Write a segment that begins a log at an offset, with what follows on it without a hole before another offset.

        The segment behind it still says that it follows another one: that is for the next :meth:`mend`.

        Raises:
            CorruptData, Unavailable, OSError: See :meth:`mend`.
        """
        self._fill_pool(self._log.bases, whole_from=offset)
        self._replace(offset, stop, self._head(offset, None, None, None))

    def cut_at(self, base: Offset, offset: Offset) -> None:
        """Write a segment anew as far as an offset, where the log is to end.

        Raises:
            CorruptData, OSError: See :meth:`mend`.
        """
        segment = self._segments.get(base)
        head = None if segment is None else segment.head
        previous = max((each for each in self._log.bases if each < base), default=None)
        if head is None:
            before = None if previous is None else self.end_in(previous, base)
            head = self._head(base, segment, previous, before)
        self._replace(base, offset, head)

    def end_in(self, base: Offset, offset: Offset) -> LogEnd:
        """Where a segment, as it is now, has an offset, or its end if that comes before."""
        return _as_it_is(base, scan_segment(self._place.log, base, self._place.identity), offset).end

    def _replace(self, base: Offset, stop: Offset | None, head: SegmentHead | None) -> None:
        assert head is not None
        self._write_beside(base, stop, head)
        self._publish(paths.segment_file(self._place.log, base))

    def _publish(self, path: Path) -> None:
        if path.exists():
            self._quarantine.copy(path)
        self._files.rename(_unfinished(path), path)
        self._files.sync_directory(path.parent)

    def _bases(self, strays: set[Offset]) -> list[Offset]:
        """Where segments begin, of those that are there and of those that are missing."""
        there = set(self._segments) | {each.of for each in self._segments.values()}
        heads = {base: each.head for base, each in self._segments.items() if each.head is not None}
        if not there:
            # What had expired nobody knows.
            start = 0 if self._source is None else self._source.start(self._track)
            found = {base for base in strays if base < self._known.end} | self._known.bases | {Offset(start)}
            return sorted(base for base in found if base >= start)
        first, last = min(there), max(there)
        found = there | {base for base in self._known.bases if base > first and not self._is_within(base)}
        for base, following in pairwise(sorted(there)):
            between = {each for each in strays if base < each < following}
            head = heads.get(following)
            if head is not None:
                between = {each for each in between if each <= head.previous_base}
                between |= {head.previous_base} - {NO_OFFSET, base}
            found |= {each for each in between if base < each < following}
        found |= {each for each in strays if last < each < self._known.end}
        front = self._front(first, strays)
        if front and first in heads:
            front |= {head for head in [heads[first].previous_base] if min(front) <= head}
        return sorted(found | front)

    def _is_within(self, offset: Offset) -> bool:
        """Whether an offset is within a segment that is there, so that no other one begins at it."""
        before = max((base for base in self._segments if base < offset), default=None)
        return before is not None and self.end_in(before, OFFSET_MAX).offset > offset

    def _front(self, first: int, strays: set[Offset]) -> set[Offset]:
        """Where segments before the first one begin, if they did not expire and the replica has them."""
        if self._source is None or first == 0:
            return set()
        start = self._source.start(self._track)
        if self._source.end(self._track) <= start:
            return set()
        # What expired leaves no sparse index, but for that of the last segment, if its remover died.
        front = {base for base in strays if start <= base < first}
        if not self._known.can_begin_at(Offset(first)):
            front.add(Offset(start))
        return front

    def _fill_pool(self, bases: Sequence[Offset], *, whole_from: int = OFFSET_MAX) -> None:
        """Every batch that is right and stands in its segment, of segments that are not right as they are.

        Args:
            whole_from: Also those that are, from this offset on.
        """
        following = dict(pairwise(bases))
        for each in sorted(self._segments.values(), key=lambda each: each.of != each.base):
            stop = following.get(each.of, OFFSET_MAX)
            if each.data is not None or stop > whole_from:
                self._add_to_pool(each, stop)

    def _add_to_pool(self, segment: ScannedSegment, stop: int) -> None:
        for place in segment.batches() if segment.offsets else ():
            if segment.of <= place.header.base_offset and place.header.next_offset <= stop:
                self._pool.setdefault(place.header.base_offset, place)

    def _mend_segments(self, bases: Sequence[Offset]) -> None:
        before: LogEnd | None = None
        for place, base in enumerate(bases):
            is_last = place == len(bases) - 1
            stop = None if is_last else bases[place + 1]
            previous = bases[place - 1] if place else None
            found = self._mend_segment(base, stop, previous, before)
            before = found.end if found is not None else None
            if found is None:
                self._writers = None
            else:
                self._mend_derived(base, found, is_first=not place)
            if is_last and found is not None:
                self._log.end = found.end.offset
        for base, stop, head in self._heads_due:  # once the segments behind follow on them
            self._add_to_pool(self._segments[base], OFFSET_MAX if stop is None else stop)
            self._replace(base, stop, head)
            self._log.repaired.append(
                f"{paths.segment_file(self._place.log, base).name} follows on the one before again"
            )

    def _mend_segment(
        self, base: Offset, stop: Offset | None, previous: Offset | None, before: LogEnd | None
    ) -> _Written | None:
        """A segment that is whole by now; None if it has a hole.

        Args:
            stop: Where the next one begins; None for the last.
            previous: Base offset of the one before; None for the first.
            before: Where that ends, if it is whole.
        """
        segment = self._segments.get(base)
        own = _as_it_is(base, segment, stop)
        ends = self._ends(base, stop)
        known = self._known_end(base, own.end.offset) if stop is None else stop
        head = self._head(base, segment, previous, before)
        wrong = "it is missing" if segment is None else segment.wrong
        if not wrong and own.end.offset == stop and not _is_all_of(segment, own):
            # What a failed fsync left there stays; the segment begun then has no file of writers.
            wrong = "bytes stood behind its end" if paths.writers_file(self._place.log, stop).exists() else ""
        own_head = None if segment is None else segment.head
        if segment is not None and own_head is not None and head is not None and own_head != head:
            if self._begins(base):  # it is not the first, and was begun by a repair that died
                self._heads_due.append((base, stop, head))
                head = own_head
            elif self._begins(previous) and own_head.previous_base != previous:
                wrong = "it follows on another one now"
            else:
                raise CorruptData(
                    "A segment of the log is not the one behind the one before; restore the log from a copy.",
                    path=segment.path,
                    previous=own_head.previous_base,
                    previous_end=own_head.previous_end,
                )
        is_known = stop is not None or self._known.has_state
        if not wrong and own.end.offset >= known and ends in (None, own.end.position):
            if is_known or _is_all_of(segment, own):
                return own
            wrong = "what stands at its end can't be read"
        if own.end.offset < known and not wrong:
            wrong = f"what begins at offset {own.end.offset} is damaged or missing"
        if segment is not None and segment.data is None:
            self._add_to_pool(segment, OFFSET_MAX if stop is None else stop)
        if head is None:
            self._miss(base, base, known, is_end=stop is None)
            if (last := self._log.holes[-1]).start == last.end:  # it is only the head
                self._log.holes[-1] = replace(last, is_end=False)
            return None
        made = self._write_beside(base, stop, head)
        path = paths.segment_file(self._place.log, base)
        is_known = is_known or self._known.accepts_unknown or _is_all_of(segment, made)
        if made.end.offset < known or ends not in (None, made.end.position) or not is_known:
            self._files.remove(_unfinished(path))
            if made.end.offset >= known and is_known:
                raise CorruptData(
                    "A segment of the log does not end where the next one says; restore the log from a copy.",
                    path=path,
                    says=ends,
                    position=made.end.position,
                )
            self._miss(base, made.end.offset, known, is_end=stop is None)
            return None
        self._publish(path)
        taken = f", {made.from_replica} of its batches from the replica" if made.from_replica else ""
        self._log.repaired.append(f"{path.name} was written anew{taken}: {wrong or 'it ends elsewhere'}")
        return made

    def _ends(self, base: Offset, following: Offset | None) -> Position | None:
        """Where a segment ends, by the head of the next one."""
        segment = None if following is None else self._segments.get(following)
        if segment is None or segment.head is None or segment.head.previous_base != base:
            return None
        return segment.head.previous_end

    def _begins(self, base: Offset | None) -> bool:
        """Whether a segment is as a first one; one that is not the first was written so by :meth:`begin_at`."""
        segment = None if base is None else self._segments.get(base)
        return segment is not None and segment.head is not None and segment.head.previous_base == NO_OFFSET

    def _known_end(self, base: Offset, end: Offset) -> Offset:
        """Up to where the last segment was durable."""
        behind = [each.header for offset, each in self._pool.items() if offset > end and offset >= base]
        durable = max((header.durable_end for header in behind), default=0)
        known = max(self._known.end, durable)
        if known <= end:
            return end
        # What stands behind the hole was there too.
        return Offset(max([known, *(header.next_offset for header in behind)]))

    def _head(
        self, base: Offset, segment: ScannedSegment | None, previous: Offset | None, before: LogEnd | None
    ) -> SegmentHead | None:
        """The head a segment has; None if that is not known."""
        own = segment.head if segment is not None else None
        identity = self._place.identity
        if previous is None:
            if own is not None:
                return own
            # What was before the first one nobody asks.
            return SegmentHead(identity.store_id, identity.table_id, identity.bucket_id, base, NO_OFFSET, START)
        if before is None:
            return own
        return SegmentHead(identity.store_id, identity.table_id, identity.bucket_id, base, previous, before.position)

    def _miss(self, base: Offset, start: Offset, end: Offset, *, is_end: bool) -> None:
        """Note the holes between two offsets of a segment."""
        at = start
        for offset in sorted(each for each in self._pool if start <= each < end):
            if offset > at:
                self._log.holes.append(Hole(at, offset, base, is_end))
            at = max(at, self._pool[offset].header.next_offset)
        if at < end or not self._log.holes or self._log.holes[-1].base != base:
            self._log.holes.append(Hole(at, max(at, end), base, is_end))

    def _write_beside(self, base: Offset, stop: Offset | None, head: SegmentHead) -> _Written:
        """Write a segment as far as there are batches for it; it has not its name yet."""
        path = _unfinished(paths.segment_file(self._place.log, base))
        if os.path.lexists(path):
            self._files.remove(path)
        descriptor = self._files.open(path, create=True)
        try:
            self._files.write(descriptor, [memoryview(encode_head(head))], 0)
            written = _Written(LogEnd(base, Position(HEAD_BYTES), base), [], [])
            for header, data, is_own in self._chain(base, stop):
                self._files.write(descriptor, [data], written.end.position)
                written.from_replica += not is_own
                _add(written, header)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
        return written

    def _chain(self, start: Offset, stop: Offset | None) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
        """Batches from an offset on, from wherever they are; and whether it is from here."""
        at, until = start, OFFSET_MAX if stop is None else stop
        while at < until:
            before = at
            while (own := self._pool.get(at)) is not None and own.header.next_offset <= until:
                yield own.header, self._mapped(own.path)[own.position : own.end], True
                at = own.header.next_offset
            if self._source is not None and at < until:
                for header, data in self._source.batches(self._track, at, until, self._agree):
                    if header.base_offset in self._pool:
                        break
                    yield header, data, False
                    at = header.next_offset
            if at == before:
                return

    def _mapped(self, path: Path) -> memoryview:
        """A file as it was when it was read, whatever has its name by now."""
        scanned = self._segments[Offset(int(path.stem))]
        return mapped(path) if scanned.data is None else scanned.data

    def _agree(self, header: BatchHeader) -> None:
        """Hold a batch of the replica against what is here."""
        base = max((base for base in self._segments if base <= header.base_offset), default=None)
        segment = None if base is None else self._segments[base]
        if segment is None or segment.of != segment.base:
            return
        place = bisect_left(segment.offsets, header.base_offset)
        if segment.offsets[place : place + 1] == array("q", [header.base_offset]) and segment.sums[place] != header.crc:
            raise CorruptData(
                "The replica has other changes than the log: it is another history. Nothing is taken from it.",
                path=segment.path,
                offset=header.base_offset,
            )

    def _mend_derived(self, base: Offset, found: _Written, *, is_first: bool) -> None:
        """The sparse index of a segment, and what it says of writers."""
        self._mend_sparse_index(base, found.entries)
        self._mend_writers(base, is_first=is_first)
        snapshots = {each.offset: each for each in self._known.snapshots}
        for header in found.headers:
            if self._writers is None and header.base_offset in snapshots:
                self._writers = WriterStates(snapshots[header.base_offset].writers())
            if self._writers is not None:
                self._writers.remember(header)

    def _mend_sparse_index(self, base: Offset, entries: list[Entry]) -> None:
        path = paths.sparse_index_file(self._place.log, base)
        try:
            data = read_file(path, bytes_max=sparse_index.SPARSE_INDEX_BYTES_MAX)
        except (FileNotFoundError, CorruptData):
            data = b""
        there = sparse_index.decode(data)
        is_whole = len(data) == sparse_index.HEAD_BYTES + len(there) * sparse_index.ENTRY_BYTES
        if is_whole and set(there) <= set(entries):
            return
        self._put(path, sparse_index.encode(_spaced(entries)), "sparse index")

    def _mend_writers(self, base: Offset, *, is_first: bool) -> None:
        path = paths.writers_file(self._place.log, base)
        if is_first and not base:
            self._writers = WriterStates({})
        try:
            offset, writers = decode_snapshot(read_file(path, bytes_max=WRITERS_BYTES_MAX))
        except FileNotFoundError:
            return
        except UnsupportedVersion:
            raise
        except CorruptData:
            offset, writers = NO_OFFSET, {}
        if is_first and offset == base and self._writers is None:
            self._writers = WriterStates(writers)
        if offset == base and (self._writers is None or self._writers.all() == writers):
            return
        if self._writers is None:
            self._quarantine.move(path)
            self._log.repaired.append(f"{path.name} was damaged, and is put aside: it only saves time")
        else:
            self._put(path, self._writers.snapshot(base), "what a segment says of writers")

    def _put(self, path: Path, data: bytes, what: str) -> None:
        if path.exists():
            self._quarantine.copy(path)
        self._files.publish(path, data)
        self._log.repaired.append(f"{path.name} was made anew of the log: the {what} was damaged or missing")


def _is_all_of(segment: ScannedSegment | None, found: _Written) -> bool:
    return segment is not None and segment.size <= found.end.position


def _as_it_is(base: Offset, segment: ScannedSegment | None, stop: Offset | None) -> _Written:
    found = _Written(LogEnd(base, Position(HEAD_BYTES), base), [], [])
    for place in segment.chain() if segment is not None else ():
        if stop is not None and place.header.next_offset > stop:
            break
        _add(found, place.header)
    return found


def _add(segment: _Written, header: BatchHeader) -> None:
    base, position, _ = segment.end.base, segment.end.position, segment.end.offset
    segment.entries.append(Entry(header.base_offset, header.commit_timestamp, position))
    segment.headers.append(header)
    segment.end = LogEnd(base, Position(position + header.size), header.next_offset)


def _spaced(entries: Sequence[Entry]) -> list[Entry]:
    """Those that a writer would have noted."""
    noted: list[Entry] = []
    for entry in entries:
        if not noted or entry.position - noted[-1].position >= sparse_index.INTERVAL_BYTES:
            noted.append(entry)
    return noted


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + paths.TEMPORARY)
