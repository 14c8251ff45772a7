"""Repairs the log of a bucket whose lock is held: it rewrites segments that are damaged or missing.

* Batches are taken unchanged: from the files, wherever a valid batch is in its segment, and from a replica. Only a
  chain counts, in which each batch begins where the one before it ends.
* A segment gets its name only when it is complete and durable; the quarantine has a copy of the damaged one before.
* A segment that can't be completed stays as it is; what it lacks is a hole. Nothing is truncated here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from kvstore.bucket.context import BucketPaths
from kvstore.disk.files import Files, names_in
from kvstore.errors import CorruptData
from kvstore.log.segment_writer import EncodedBatch, SegmentWriter, head_at, publish, temporary_file
from kvstore.log.segments import LogEnd
from kvstore.repair.derived_files import DerivedFilesRepair
from kvstore.repair.evidence import Hole, LogEvidence, RepairedLog
from kvstore.repair.quarantine import Quarantine
from kvstore.repair.scan import PlacedBatch, ScannedSegment, mapped, scan_segment
from kvstore.repair.source import Source
from logformat import paths
from logformat.catalog.replicas import Stream
from logformat.ids import OFFSET_MAX, Offset, Position
from logformat.log.batch import BatchHeader
from logformat.log.segment import HEAD_BYTES, NO_OFFSET, SegmentHead
from logformat.log.sparse_index import Entry


@dataclass(slots=True)
class _Content:
    """The chain of batches in a segment's file.

    Attributes:
        end: Where the chain ends.
        entries: An entry of the sparse index for each batch.
        from_replica: How many batches were taken from the replica.
    """

    end: LogEnd
    entries: list[Entry] = field(default_factory=list)
    headers: list[BatchHeader] = field(default_factory=list)
    from_replica: int = 0

    def add(self, header: BatchHeader) -> None:
        """Add the next batch."""
        base, position, _ = self.end.base, self.end.position, self.end.offset
        self.entries.append(Entry(header.base_offset, header.commit_timestamp, position))
        self.headers.append(header)
        self.end = LogEnd(base, Position(position + header.size), header.next_offset)


class LogRepair:
    """Repairs one log.

    Args:
        bucket: The bucket; its directory exists.
        evidence: What is known of the log from elsewhere.
        source: A replica, if there is one.
    """

    def __init__(
        self,
        bucket: BucketPaths,
        evidence: LogEvidence,
        files: Files,
        quarantine: Quarantine,
        source: Source | None = None,
    ) -> None:
        self._paths = bucket
        self._evidence = evidence
        self._files = files
        self._quarantine = quarantine
        self._source = source
        self._stream = Stream(bucket.identity.table_id, bucket.identity.bucket_id)
        self._segments: dict[Offset, ScannedSegment] = {}
        self._valid: dict[Offset, PlacedBatch] = {}
        """Valid batches of segments to rewrite, by base offset."""
        self._log = RepairedLog()
        self._late_heads: list[tuple[Offset, Offset | None, SegmentHead]] = []
        """Segments whose head names no predecessor though they have one, where the next begins, and the head due."""

    def repair(self) -> RepairedLog:
        """Rewrite every segment that can be completed, and the files derived from it.

        Raises:
            CorruptData: The files contradict each other, or the replica. What was repaired before stays repaired.
            UnsupportedVersion: A newer version wrote something.
            NotAStore: The path of the log's directory is something else.
            Unavailable: The replica can't be reached.
            OSError: The disk refuses.
        """
        names = names_in(self._paths.log)
        if not self._paths.log.is_dir():
            self._files.make_directory(self._paths.log)
        for base in sorted(base for name in names if (base := paths.segment_base(name)) is not None):
            self._segments[base] = scan_segment(self._paths.log, base, self._paths.identity)
        sparse_bases = {base for name in names if (base := paths.sparse_index_base(name)) is not None}
        bases = self._log.bases = self._find_bases(sparse_bases)
        self._collect_batches(bases)
        self._repair_segments(bases)
        return self._log

    def move_to_quarantine(self, base: Offset) -> None:
        """Move a segment to the quarantine, with its sparse index and ``.writers`` file.

        Raises:
            OSError: The disk refuses.
        """
        for path in (
            paths.segment_file(self._paths.log, base),
            paths.sparse_index_file(self._paths.log, base),
            paths.writers_file(self._paths.log, base),
        ):
            if path.exists():
                self._quarantine.move(path)
        self._segments.pop(base, None)

    def begin_at(self, offset: Offset, stop: Offset | None) -> None:
        """Write a first segment that begins at an offset, with the batches that follow it without a hole.

        The head of the segment after it still names another predecessor; the next :meth:`repair` corrects it.

        Args:
            stop: Where the next segment begins; None if there is none.

        Raises:
            CorruptData, Unavailable, OSError: See :meth:`repair`.
        """
        self._collect_batches(self._log.bases, all_from=offset)
        self._rewrite(offset, stop, head_at(offset, self._paths.identity))

    def truncate_at(self, base: Offset, offset: Offset) -> None:
        """Rewrite a segment up to an offset, where the log is to end.

        Raises:
            CorruptData, OSError: See :meth:`repair`.
        """
        segment = self._segments.get(base)
        head = None if segment is None else segment.head
        previous = max((each for each in self._log.bases if each < base), default=None)
        if head is None:
            before = None if previous is None else self.end_in(previous, base)
            head = self._head(base, segment, previous, before)
        self._rewrite(base, offset, head)

    def end_in(self, base: Offset, offset: Offset) -> LogEnd:
        """The end of a segment's file as it is now, or the place of an offset if that comes first."""
        return _content(base, scan_segment(self._paths.log, base, self._paths.identity), offset).end

    def _rewrite(self, base: Offset, stop: Offset | None, head: SegmentHead | None) -> None:
        assert head is not None
        self._write_temporary(base, stop, head)
        self._publish(base)

    def _publish(self, base: Offset) -> None:
        path = paths.segment_file(self._paths.log, base)
        if path.exists():
            self._quarantine.copy(path)
        publish(self._paths.log, base, self._files)

    def _find_bases(self, sparse_bases: set[Offset]) -> list[Offset]:
        """Base offsets of all segments, also of those that are missing.

        Args:
            sparse_bases: Base offsets in the names of sparse indexes.
        """
        present = set(self._segments) | {each.head_base for each in self._segments.values()}
        heads = {base: each.head for base, each in self._segments.items() if each.head is not None}
        if not present:
            start = 0 if self._source is None else self._source.start(self._stream)
            durable = {base for base in sparse_bases if start <= base < self._evidence.durable_end}
            bases = durable | {base for base in self._evidence.bases if base >= start}
            if not durable or not self._evidence.can_begin_at(min(durable)):
                bases.add(Offset(start))  # nothing else says which segments had expired
            return sorted(bases)
        first, last = min(present), max(present)
        bases = present | {base for base in self._evidence.bases if base > first and not self._is_within(base)}
        for base, following in pairwise(sorted(present)):
            between = {each for each in sparse_bases if base < each < following}
            head = heads.get(following)
            if head is not None:
                between = {each for each in between if each <= head.previous_base}
                between |= {head.previous_base} - {NO_OFFSET, base}
            bases |= {each for each in between if base < each < following}
        bases |= {each for each in sparse_bases if last < each < self._evidence.durable_end}
        lost_first = self._find_bases_before(first, sparse_bases)
        if lost_first and first in heads:
            lost_first |= {head for head in [heads[first].previous_base] if min(lost_first) <= head}
        return sorted(bases | lost_first)

    def _is_within(self, offset: Offset) -> bool:
        """Whether an offset is inside an existing segment, so that no other segment begins there."""
        before = max((base for base in self._segments if base < offset), default=None)
        return before is not None and self.end_in(before, OFFSET_MAX).offset > offset

    def _find_bases_before(self, first: int, sparse_bases: set[Offset]) -> set[Offset]:
        """Base offsets of lost segments before the first existing one, if they did not expire and the replica has them.

        A segment that expired leaves no sparse index, except for the last one if the process that removed it died.
        """
        if self._source is None or first == 0:
            return set()
        start = self._source.start(self._stream)
        if self._source.end(self._stream) <= start:
            return set()
        bases = {base for base in sparse_bases if start <= base < first}
        if not self._evidence.can_begin_at(Offset(first)):
            bases.add(Offset(start))
        return bases

    def _collect_batches(self, bases: Sequence[Offset], *, all_from: int = OFFSET_MAX) -> None:
        """Collect the valid batches of damaged segments.

        Args:
            all_from: Collect also those of valid segments that reach beyond this offset.
        """
        following = dict(pairwise(bases))
        for each in sorted(self._segments.values(), key=lambda each: each.head_base != each.base):
            stop = following.get(each.head_base, OFFSET_MAX)
            if each.data is not None or stop > all_from:
                self._collect_from(each, stop)

    def _collect_from(self, segment: ScannedSegment, stop: int) -> None:
        for batch in segment.batches() if segment.offsets else ():
            if segment.head_base <= batch.header.base_offset and batch.header.next_offset <= stop:
                self._valid.setdefault(batch.header.base_offset, batch)

    def _repair_segments(self, bases: Sequence[Offset]) -> None:
        derived = DerivedFilesRepair(self._paths.log, self._evidence, self._files, self._quarantine, self._log.repaired)
        before: LogEnd | None = None
        for number, base in enumerate(bases):
            is_last = number == len(bases) - 1
            stop = None if is_last else bases[number + 1]
            previous = bases[number - 1] if number else None
            content = self._repair_segment(base, stop, previous, before)
            if content is None:
                before = None
                derived.skip()
                continue
            before = content.end
            derived.repair(base, content.entries, content.headers, is_first=not number)
            if is_last:
                self._log.end = content.end.offset
        for base, stop, head in self._late_heads:  # only when the segments after them name them
            self._collect_from(self._segments[base], OFFSET_MAX if stop is None else stop)
            self._rewrite(base, stop, head)
            self._log.repaired.append(
                f"{paths.segment_file(self._paths.log, base).name} names the segment before it again"
            )

    def _repair_segment(
        self, base: Offset, stop: Offset | None, previous: Offset | None, before: LogEnd | None
    ) -> _Content | None:
        """Complete one segment; None if it has a hole.

        Args:
            stop: Where the next segment begins; None for the last.
            previous: Base offset of the segment before; None for the first.
            before: End of the segment before, if that is complete.
        """
        segment = self._segments.get(base)
        own = _content(base, segment, stop)
        end_in_next = self._end_in_next_head(base, stop)
        durable_end = self._durable_end(base, own.end.offset) if stop is None else stop
        head = self._head(base, segment, previous, before)
        problem = "it was missing" if segment is None else segment.problem
        if not problem and own.end.offset == stop and not _fills(own, segment):
            # Bytes left by a failed fsync stay; the segment begun then has no file of writers.
            problem = "it had bytes after its end" if paths.writers_file(self._paths.log, stop).exists() else ""
        own_head = None if segment is None else segment.head
        if segment is not None and own_head is not None and head is not None and own_head != head:
            if self._has_first_head(base):  # written by an interrupted repair: it is not the first
                self._late_heads.append((base, stop, head))
                head = own_head
            elif self._has_first_head(previous) and own_head.previous_base != previous:
                problem = "another segment is before it now"
            else:
                raise CorruptData(
                    "A segment of the log does not follow the one before it; restore the log from a copy.",
                    path=segment.path,
                    previous=own_head.previous_base,
                    previous_end=own_head.previous_end,
                )
        end_is_known = stop is not None or self._evidence.has_index_state
        if not problem and own.end.offset >= durable_end and end_in_next in (None, own.end.position):
            if end_is_known or _fills(own, segment):
                return own
            problem = "bytes at its end could not be read"
        if own.end.offset < durable_end and not problem:
            problem = f"offset {own.end.offset} was damaged or missing"
        if segment is not None and segment.data is None:
            self._collect_from(segment, OFFSET_MAX if stop is None else stop)
        if head is None:
            self._add_holes(base, base, durable_end, is_end=stop is None)
            if (last := self._log.holes[-1]).start == last.end:  # it lacks only the head
                self._log.holes[-1] = replace(last, is_end=False)
            return None
        written = self._write_temporary(base, stop, head)
        path = paths.segment_file(self._paths.log, base)
        end_is_known = end_is_known or self._evidence.accepts_unknown_end or _fills(written, segment)
        if written.end.offset < durable_end or end_in_next not in (None, written.end.position) or not end_is_known:
            self._files.remove(temporary_file(self._paths.log, base))
            if written.end.offset >= durable_end and end_is_known:
                raise CorruptData(
                    "A segment of the log does not end where the next one says; restore the log from a copy.",
                    path=path,
                    says=end_in_next,
                    position=written.end.position,
                )
            self._add_holes(base, written.end.offset, durable_end, is_end=stop is None)
            return None
        self._publish(base)
        taken = f", {written.from_replica} of its batches from the replica" if written.from_replica else ""
        self._log.repaired.append(f"{path.name} was rewritten{taken}: {problem or 'it ended at another position'}")
        return written

    def _end_in_next_head(self, base: Offset, following: Offset | None) -> Position | None:
        """Where a segment ends, as the head of the next one says."""
        segment = None if following is None else self._segments.get(following)
        if segment is None or segment.head is None or segment.head.previous_base != base:
            return None
        return segment.head.previous_end

    def _has_first_head(self, base: Offset | None) -> bool:
        """Whether a segment has the head of a log's first one; if it is not the first, :meth:`begin_at` wrote it."""
        segment = None if base is None else self._segments.get(base)
        return segment is not None and segment.head is not None and segment.head.previous_base == NO_OFFSET

    def _durable_end(self, base: Offset, end: Offset) -> Offset:
        """Up to where the last segment was durable."""
        later = [each.header for offset, each in self._valid.items() if offset > end and offset >= base]
        durable = max((header.durable_end for header in later), default=0)
        durable = max(self._evidence.durable_end, durable)
        if durable <= end:
            return end
        # Batches after the hole were durable, too.
        return Offset(max([durable, *(header.next_offset for header in later)]))

    def _head(
        self, base: Offset, segment: ScannedSegment | None, previous: Offset | None, before: LogEnd | None
    ) -> SegmentHead | None:
        """The head a segment should have; None if that is unknown."""
        own = segment.head if segment is not None else None
        if previous is None:
            # Nothing reads what the head of the first segment says about the one before it.
            return own or head_at(base, self._paths.identity)
        return own if before is None else head_at(base, self._paths.identity, before)

    def _add_holes(self, base: Offset, start: Offset, end: Offset, *, is_end: bool) -> None:
        """Add the holes between two offsets of a segment."""
        at = start
        for offset in sorted(each for each in self._valid if start <= each < end):
            if offset > at:
                self._log.holes.append(Hole(at, offset, base, is_end))
            at = max(at, self._valid[offset].header.next_offset)
        if at < end or not self._log.holes or self._log.holes[-1].base != base:
            self._log.holes.append(Hole(at, max(at, end), base, is_end))

    def _write_temporary(self, base: Offset, stop: Offset | None, head: SegmentHead) -> _Content:
        """Write a segment as far as there are batches for it, under a temporary name."""
        writer = SegmentWriter.begin_temporary(self._paths.log, head, self._files)
        try:
            written = _Content(writer.end)
            for header, data, is_own in self._chain(base, stop):
                writer.append([EncodedBatch.of(header, [data])])
                written.from_replica += not is_own
                written.add(header)
            writer.sync()
        finally:
            writer.close()
        return written

    def _chain(self, start: Offset, stop: Offset | None) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
        """Batches from an offset on without a hole, and whether each is from this log."""
        at, until = start, OFFSET_MAX if stop is None else stop
        while at < until:
            before = at
            while (own := self._valid.get(at)) is not None and own.header.next_offset <= until:
                yield own.header, self._scanned_bytes(own.path)[own.position : own.end], True
                at = own.header.next_offset
            if self._source is not None and at < until:
                for header, data in self._source.batches(self._stream, at, until, self._refuse_other_history):
                    if header.base_offset in self._valid:
                        break
                    yield header, data, False
                    at = header.next_offset
            if at == before:
                return

    def _scanned_bytes(self, path: Path) -> memoryview:
        """A file as it was when it was scanned, even if another one has its name by now."""
        scanned = self._segments[Offset(int(path.stem))]
        return mapped(path) if scanned.data is None else scanned.data

    def _refuse_other_history(self, header: BatchHeader) -> None:
        """Compare a batch of the replica with the batch at the same offset in the log."""
        base = max((base for base in self._segments if base <= header.base_offset), default=None)
        segment = None if base is None else self._segments[base]
        if segment is None or segment.head_base != segment.base:
            return
        number = bisect_left(segment.offsets, header.base_offset)
        is_here = segment.offsets[number : number + 1] == array("q", [header.base_offset])
        if is_here and segment.checksums[number] != header.crc:
            raise CorruptData(
                "The replica has other changes than the log: it is another history. Nothing is taken from it.",
                path=segment.path,
                offset=header.base_offset,
            )


def _fills(content: _Content, segment: ScannedSegment | None) -> bool:
    """Whether a segment's file had no bytes after the chain."""
    return segment is not None and segment.size <= content.end.position


def _content(base: Offset, segment: ScannedSegment | None, stop: Offset | None) -> _Content:
    """The chain of batches in a segment's file as it is, up to an offset."""
    content = _Content(LogEnd(base, Position(HEAD_BYTES), base))
    for each in segment.chain() if segment is not None else ():
        if stop is not None and each.header.next_offset > stop:
            break
        content.add(each.header)
    return content
