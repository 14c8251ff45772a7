"""Checks a store: every page and checksum, and that log, index, snapshots and writers agree.

* A check changes nothing, and other processes may write meanwhile.
* Damage is a finding, and the rest is checked all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.snapshots import snapshot
from kvstore.bucket.snapshots.snapshot import Snapshot
from kvstore.disk.files import is_too_many_open, read_file, refusal
from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import (
    CorruptData,
    NoSuchTable,
    NotAStore,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Unavailable,
    UnknownSchema,
    WriterFenced,
)
from kvstore.index.index import View
from kvstore.indexing.entries import different_entries
from kvstore.indexing.unique import duplicate
from kvstore.log.segments import FoundBatch
from kvstore.log.writer_state import WriterStates, uncounted_after
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.read.scan import SCAN_ROWS
from kvstore.request.row_layout import layout_of
from logformat import paths
from logformat.checksum import key_sums
from logformat.ids import BucketId, Epoch, Offset
from logformat.log.batch import BatchHeader, LogBatch, decode_batch
from logformat.log.change import ChangeType
from logformat.log.index_state import IndexState
from logformat.log.segment import HEAD_BYTES
from logformat.log.writer_entry import WRITERS_BYTES_MAX, decode_snapshot

_GAINS = (ChangeType.APPEND, ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE)

_FOLD_ROWS = 1 << 20


@dataclass
class BucketReport:
    """What a check found in one bucket.

    Attributes:
        batches, empty_batches, changes: Counts of the log.
        rows: Rows of the index.
        findings: What is wrong, one sentence each; empty if nothing is.
    """

    table: str
    bucket: BucketId
    batches: int = 0
    empty_batches: int = 0
    changes: int = 0
    rows: int = 0
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CheckReport:
    """What :meth:`kvstore.Store.check` found; true if nothing is wrong."""

    buckets: list[BucketReport]
    catalog_findings: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[str]:
        """What is wrong, one sentence each; findings of a bucket begin with `<table>/<bucket>`."""
        of_buckets = [f"{report.table}/{report.bucket}: {text}" for report in self.buckets for text in report.findings]
        return self.catalog_findings + of_buckets

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok


def check_buckets(
    parts: Sequence[tuple[BucketHandle, TableCatalog, BucketId]], progress: Callable[[int, int], object]
) -> list[BucketReport]:
    """Check buckets one after the other, but those of tables that are dropped meanwhile.

    Args:
        progress: Called with the approximate number of bytes that were verified, and of all.
    """
    sizes = [_log_bytes(handle) + _index_bytes(handle) for handle, *_ in parts]
    reports: list[BucketReport] = []
    for number, (handle, catalog, bucket) in enumerate(parts):
        before, verified = sum(sizes[:number]), 0

        def add(size: int, before: int = before, limit: int = sizes[number]) -> None:
            nonlocal verified
            verified = min(verified + size, limit)
            progress(before + verified, sum(sizes))

        with suppress(NoSuchTable):
            reports.append(_report(handle, catalog, bucket, add))
    progress(sum(sizes), sum(sizes))
    return reports


def _report(
    handle: BucketHandle, catalog: TableCatalog, bucket: BucketId, verified: Callable[[int], object]
) -> BucketReport:
    while True:
        definition = catalog.definition()
        report = check_bucket(handle, definition, bucket, verified)
        # What is found in a table that is altered or dropped meanwhile may come of that.
        if not report.findings or catalog.definition() == definition:
            return report


def _log_bytes(handle: BucketHandle) -> int:
    return sum(map(_size, handle.paths.log.glob("*.log")))


def _index_bytes(handle: BucketHandle) -> int:
    return sum(map(_size, handle.paths.index.glob(LMDB_FILES[0])))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # it went meanwhile; what matters is found when it is read


def check_bucket(
    handle: BucketHandle,
    definition: TableDefinition,
    bucket: BucketId,
    verified: Callable[[int], object] = lambda _: None,
) -> BucketReport:
    """Check one bucket, up to what is durable now; writes continue meanwhile.

    Args:
        verified: Called with the number of bytes of each part that was verified.

    Raises:
        LogFailed: Too many files are open, which says nothing about the bucket.
    """
    while True:
        start = None
        report = BucketReport(definition.name, bucket)
        try:
            start = handle.log.start()
            _check(handle, definition, start, report, verified)
        except OSError as error:
            if error.errno is None:  # that of a handler of signals, such as TimeoutError
                raise
            if is_too_many_open(error):
                raise refusal(error, handle.paths.directory) from error
            report.findings.append(f"{Path(str(error.filename or 'a file')).name} can't be read: {error.strerror}")
        except (CorruptData, NotAStore, OffsetOutOfRange, UnknownSchema) as error:
            if start is not None and isinstance(error, OffsetOutOfRange) and handle.log.start() != start:
                continue  # segments expired while they were read
            report.findings.append(str(error))
        return report


def _check(
    handle: BucketHandle,
    definition: TableDefinition,
    start: Offset,
    report: BucketReport,
    verified: Callable[[int], object],
) -> None:
    handle.verify_pages()
    # Listed before the view is opened: a later snapshot may be ahead of the view.
    snapshots = list(_valid_snapshots(handle, report))
    with handle.indexed() as view:
        state = view.state()
        log = _LogReplay(definition, report, snapshots, start)
        for batch in handle.log.batches(start, state.applied_offset):
            log.add(batch)
            verified(batch.header.size)
        log.compare(state, view)
        try:
            end = handle.committed().applied_offset
        except Unavailable:
            end = state.applied_offset  # an open commit has to be completed first; the report of the table says so
        for batch in handle.log.batches(state.applied_offset, end):
            log.add(batch)  # what the index does not have yet
            verified(batch.header.size)
        report.findings += _bytes_after_segments(handle)
        if definition.primary_key is None:
            return
        if state.merging is None:
            row_bytes = _index_bytes(handle) / max(1, state.row_count)
            compare_rows(view, state, definition, report, lambda rows: verified(int(rows * row_bytes)))
            report.findings += different_entries(definition, view)
            for each in definition.indexes:
                if each.unique and view.has_entries(each.index_id) and duplicate(definition, each, view) is not None:
                    report.findings.append(f"two rows have the same values in the unique index {each.name}")
            return
    # The index has some changes that its state has not: the rows with all of them are compared with the log.
    with suppress(Unavailable), handle.latest() as view:  # unless an open commit has to be completed first
        for batch in handle.log.batches(end, view.state().applied_offset):
            log.add(batch)
        if log.knows_rows:
            rows, digest = log.count_and_digest()
            compare_rows(view, state._replace(row_count=rows, digest=digest), definition, report)


def _bytes_after_segments(handle: BucketHandle) -> Iterator[str]:
    """Findings about bytes after the end of segments that were full: no store wrote these bytes."""
    log = handle.log
    for base, following in pairwise(log.bases()):
        # Bytes left by a failed fsync are no finding; the segment begun then has no `.writers` file.
        if paths.writers_file(handle.paths.log, following).exists():
            segment, end = log.segment(base), log.segment(following).head.previous_end
            if segment.size > end:
                yield (
                    f"{segment.path.name} has {segment.size - end} bytes after its end, position {end}, that no store"
                    " wrote; `kvstore check --repair` removes them"
                )


def _valid_snapshots(handle: BucketHandle, report: BucketReport) -> Iterator[Snapshot]:
    """Snapshots whose files are all valid, oldest first."""
    bucket, identity = handle.paths.directory, handle.identity
    for offset in reversed(snapshot.offsets(bucket)):
        try:
            snapshot_there = snapshot.read(bucket, identity, offset)
            snapshot_there.verify()
            yield snapshot_there
        except CorruptData as error:
            if offset in snapshot.offsets(bucket):  # else newer ones replaced it meanwhile
                report.findings.append(str(error))


class _LogReplay:
    """Replays the log, to compare the result with the index.

    If the log does not begin at offset 0, the state before it is taken from the first snapshot; writers are known from
    the log start on if the first segment has a `.writers` file.

    Args:
        snapshots: The valid snapshots, oldest first.
        start: The log start.

    Attributes:
        knows_rows: Whether the rows are known that the log leaves.
    """

    def __init__(
        self, definition: TableDefinition, report: BucketReport, snapshots: Sequence[Snapshot], start: Offset
    ) -> None:
        self._definition = definition
        self._report = report
        self._writers: WriterStates | None = None if start else WriterStates({})
        self.knows_rows = not start
        self._rows = 0
        self._digest = 0
        # Commit timestamp and uncounted time of the last batch, None if unknown; and where timestamps went back last.
        self._times: tuple[int, int] | None = None if start else (0, 0)
        self._back = Offset(0)
        self._last_rows = _LastRows()
        self._snapshots = [each for each in snapshots if each.log_end.base >= start]

    def add(self, logged: FoundBatch) -> None:
        """Verify and replay one batch, whose position and offsets are right."""
        header = logged.header
        self._reach(header.base_offset)
        if logged.position == HEAD_BYTES:
            self._compare_writers(logged.path, header.base_offset)
        batch = decode_batch(logged.data, self._definition.schema_of(header.schema_id), validate=True)
        self._fold_times(header)
        self._fold_writer(header)
        self._report.batches += 1
        self._report.empty_batches += batch.record_count == 0
        self._report.changes += batch.record_count
        if self.knows_rows:
            self._fold_rows(batch)

    def compare(self, state: IndexState, view: View) -> None:
        """Compare the result with the state of the index."""
        self._reach(state.applied_offset)
        if self._snapshots:
            self._finding(f"the snapshot at offset {self._snapshots[0].offset} is ahead of the index")
        if not self.knows_rows:
            self._finding("the log does not begin at offset 0, and no valid snapshot has the rows of before")
        elif (counted := self.count_and_digest()) != (state.row_count, state.digest):
            self._finding(f"the log has {counted[0]} rows, the index {state.row_count}, or their content differs")
        if self._writers is not None and self._writers.all() != view.writers():
            self._finding("the index remembers other batches of writers than the log has")
        if self._times not in (None, (state.last_timestamp, state.uncounted_ms)):
            self._finding("the index has another last commit timestamp than the log")
        if self.knows_rows and self._back != state.back_offset:
            self._finding("the index has another offset at which commit timestamps went back than the log")

    def _reach(self, offset: Offset) -> None:
        """Compare a snapshot of this offset with the log before it, or start from it if that is unknown."""
        while self._snapshots and self._snapshots[0].offset < offset:
            self._finding(
                f"the snapshot at offset {self._snapshots.pop(0).offset} is not at the end of a batch of the log"
            )
        if not self._snapshots or self._snapshots[0].offset > offset:
            return
        snapshot_taken = self._snapshots.pop(0)
        name = f"the snapshot at offset {snapshot_taken.offset}"
        writers = snapshot_taken.writers()
        if self._writers is None:
            self._writers = WriterStates(writers)
        elif self._writers.all() != writers:
            self._finding(f"{name} remembers other batches of writers than the log before it")
        uncounted, back = snapshot_taken.manifest.times
        times = snapshot_taken.manifest.last_timestamp, uncounted
        if self._times not in (None, times) or (self.knows_rows and self._back != back):
            self._finding(f"{name} has another last commit timestamp than the log before it")
        self._times, self._back = times, back
        if not self.knows_rows:
            self._take_rows(snapshot_taken)
        elif self.count_and_digest() != (snapshot_taken.manifest.row_count, snapshot_taken.digest):
            self._finding(f"{name} has other rows than the log before it")

    def _take_rows(self, snapshot: Snapshot) -> None:
        self.knows_rows = True
        self._rows, self._digest = snapshot.manifest.row_count, snapshot.digest
        if not self._sums_up:
            for rows in snapshot.rows(self._definition):
                self._last_rows.add(rows.sums, rows.hashes, np.ones(len(rows.sums), bool))

    def count_and_digest(self) -> tuple[int, int]:
        """The number of rows that the log leaves, and the sum of their hashes modulo 2^64."""
        if self._sums_up or self._definition.primary_key is None:
            return self._rows, self._digest
        return self._last_rows.count_and_digest()

    def _fold_times(self, header: BatchHeader) -> None:
        before, times = self._times, (header.commit_timestamp, header.uncounted_ms)
        if before is not None and header.base_offset:
            is_old = before[1] == header.uncounted_ms == 0 and before[0] <= header.commit_timestamp
            if not is_old and header.uncounted_ms != uncounted_after(*before, header.commit_timestamp):
                self._finding(f"the batch at offset {header.base_offset} has a wrong uncounted time")
            if header.commit_timestamp < before[0]:
                self._back = header.base_offset
        self._times = times

    def _fold_writer(self, header: BatchHeader) -> None:
        if self._writers is None:
            return
        try:
            seen = self._writers.check(
                header.writer_id,
                header.batch_sequence,
                Epoch(header.writer_epoch),
                now_ms=header.counted_ms,
                last_offset=header.last_offset,
            )
            if seen is not None:
                self._finding(f"the batch at offset {header.base_offset} is in the log twice")
        except (OutOfOrderSequence, WriterFenced) as error:
            self._finding(str(error))
        self._writers.remember(header)

    @property
    def _sums_up(self) -> bool:
        """Whether the log has the row before each change as it was stored: then sums of hashes are enough."""
        if self._definition.primary_key is None:
            return True
        return self._definition.options.changelog_image == "full" and len(self._definition.schemas) == 1

    def _fold_rows(self, batch: LogBatch) -> None:
        gains = np.isin(batch.change_types, _GAINS)
        self._rows += 2 * int(np.count_nonzero(gains)) - batch.record_count
        if self._definition.primary_key is None or not batch.record_count:
            return
        layout = layout_of(self._definition)
        sums = key_sums(layout.encode_keys(batch.rows))
        _, hashes = layout.encode_values(batch.rows, sums, batch.schema_id)
        if not self._sums_up:
            self._last_rows.add(sums, hashes, gains)
            return
        gained, lost = hashes[gains].sum(dtype=np.uint64), hashes[~gains].sum(dtype=np.uint64)
        self._digest = (self._digest + int(gained) - int(lost)) % 2**64

    def _compare_writers(self, segment: Path, base: Offset) -> None:
        """Compare the `.writers` file of a segment with the batches before it."""
        path = segment.with_suffix(".writers")
        try:
            offset, writers = decode_snapshot(read_file(path, bytes_max=WRITERS_BYTES_MAX))
        except FileNotFoundError:
            return
        except OSError as error:
            self._finding(f"{path.name} can't be read: {error.strerror}")
            return
        if self._writers is None and not self._report.batches:
            self._writers = WriterStates(writers)
        if offset != base or (self._writers is not None and self._writers.all() != writers):
            self._finding(f"{path.name} does not agree with the log before it")

    def _finding(self, text: str) -> None:
        self._report.findings.append(text)


class _LastRows:
    """The last row of each key, if sums of hashes are not enough: keys by their checksums, rows by their hashes."""

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._waiting = 0

    def add(self, sums: np.ndarray, hashes: np.ndarray, there: np.ndarray) -> None:
        """Add changes in order: key, hash of its row, and whether the key has a row after the change."""
        self._parts.append((sums, hashes, there))
        self._waiting += len(sums)
        if self._waiting >= _FOLD_ROWS:
            self._fold()

    def count_and_digest(self) -> tuple[int, int]:
        """The number of rows, and the sum of their hashes modulo 2^64."""
        self._fold()
        hashes = self._parts[0][1] if self._parts else np.zeros(0, np.uint64)
        return len(hashes), int(hashes.sum(dtype=np.uint64))

    def _fold(self) -> None:
        if not self._parts:
            return
        sums, hashes, there = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        _, lasts = np.unique(sums[::-1], return_index=True)
        lasts = len(sums) - 1 - lasts
        lasts = lasts[there[lasts]]
        self._parts = [(sums[lasts], hashes[lasts], there[lasts])]
        self._waiting = 0


def compare_rows(
    view: View,
    state: IndexState,
    definition: TableDefinition,
    report: BucketReport,
    verified: Callable[[int], object] = lambda _: None,
) -> None:
    """Verify every row of the index, and that none is missing: by their count and digest.

    Args:
        verified: Called with the number of rows of each part that was verified.
    """
    digest = 0
    for rows, hashes in _rows(view, definition):
        report.rows += rows.num_rows
        verified(rows.num_rows)
        digest = (digest + int(hashes.sum(dtype=np.uint64))) % 2**64
    if (report.rows, digest) != (state.row_count, state.digest):
        report.findings.append(
            f"the index counts {state.row_count} rows, but {report.rows} are found, or their digest differs"
        )


def _rows(view: View, definition: TableDefinition) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    layout = layout_of(definition)
    for keys, values in view.rows(SCAN_ROWS):
        yield layout.decode_found(keys, values)
