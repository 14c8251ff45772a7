"""Checking a store: every page and checksum, and that log, index and writers tell one story."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvstore.errors import CorruptData, OffsetOutOfRange, OutOfOrderSequence, UnknownSchema, WriterFenced
from kvstore.files import read_file
from kvstore.index.index import View
from kvstore.log.segments import FoundBatch
from kvstore.log.writer_state import WriterStates
from kvstore.meta.state import TableDefinition
from kvstore.table.layout import layout_of
from kvstore.table.scan import SCAN_ROWS
from kvstore.table.tablet import Tablet
from logformat.batch import LogBatch, decode_batch
from logformat.change import ChangeType
from logformat.checksum import key_sums
from logformat.ids import BucketId, Epoch, Offset
from logformat.index_state import IndexState
from logformat.octets import Octets
from logformat.segment import HEAD_BYTES
from logformat.writer_entry import decode_snapshot

_GAINS = (ChangeType.APPEND, ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE)

_FOLD_ROWS = 1 << 20


@dataclass
class BucketReport:
    """What was found in one bucket.

    Attributes:
        batches, empty_batches, changes: What the log holds.
        rows: What the index holds.
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
        """What is wrong, one sentence each; of a bucket, table and bucket first."""
        of_buckets = [f"{found.table}/{found.bucket}: {text}" for found in self.buckets for text in found.findings]
        return self.catalog_findings + of_buckets

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok


def check_tablet(tablet: Tablet, definition: TableDefinition, bucket: BucketId) -> BucketReport:
    """Check one bucket, up to what is committed now; whoever writes it goes on."""
    report = BucketReport(definition.name, bucket)
    try:
        tablet.verify_pages()
        with tablet.snapshot() as view:
            state = view.state()
            log = _Fold(definition, report)
            for found in tablet.log.batches(tablet.log.start(), state.applied_offset):
                log.add(found)
            log.compare(state, view)
            if definition.primary_key is not None:
                _compare_rows(view, state, definition, report)
    except (CorruptData, OffsetOutOfRange, UnknownSchema) as error:
        report.findings.append(str(error))
    return report


class _Fold:
    """The log folded up to what the index should say of itself."""

    def __init__(self, definition: TableDefinition, report: BucketReport) -> None:
        self._definition = definition
        self._report = report
        self._writers = WriterStates({})
        self._rows = 0
        self._digest = 0
        self._timestamp = 0
        self._last_rows = _LastRows()

    def add(self, found: FoundBatch) -> None:
        """Verify one batch and fold it in. Its place and offsets were checked on the way to it."""
        header = found.header
        if found.position == HEAD_BYTES:
            self._compare_snapshot(found.path, header.base_offset)
        batch = decode_batch(found.data, self._definition.schema_of(header.schema_id), validate=True)
        if header.commit_timestamp < self._timestamp:
            self._finding(f"the batch at offset {header.base_offset} is older than the one before it")
        self._timestamp = max(self._timestamp, header.commit_timestamp)
        try:
            seen = self._writers.check(
                header.writer_id,
                header.batch_sequence,
                Epoch(header.writer_epoch),
                now_ms=header.commit_timestamp,
                last_offset=header.last_offset,
            )
            if seen is not None:
                self._finding(f"the batch at offset {header.base_offset} stands in the log twice")
        except (OutOfOrderSequence, WriterFenced) as error:
            self._finding(str(error))
        self._writers.remember(header)
        self._report.batches += 1
        self._report.empty_batches += batch.record_count == 0
        self._report.changes += batch.record_count
        self._fold_rows(batch)

    def compare(self, state: IndexState, view: View) -> None:
        """Hold the fold against what the index says of itself."""
        if not self._sums_up:
            self._rows, self._digest = self._last_rows.count_and_digest()
        if (self._rows, self._digest) != (state.row_count, state.digest):
            self._finding(f"the log makes {self._rows} rows, the index counts {state.row_count} or has other content")
        if self._writers.all() != view.writers():
            self._finding("the index remembers other batches of writers than the log holds")
        if self._timestamp != state.last_timestamp:
            self._finding("the index has another last commit timestamp than the log")

    @property
    def _sums_up(self) -> bool:
        """Whether the log tells the row before each change, and as it was stored: then sums are enough."""
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

    def _compare_snapshot(self, segment: Path, base: Offset) -> None:
        """Hold what a segment was told of writers when it was begun against the batches before it."""
        snapshot = segment.with_suffix(".writers")
        if snapshot.exists() and decode_snapshot(read_file(snapshot)) != (base, self._writers.all()):
            self._finding(f"{snapshot.name} does not say what the log before it does")

    def _finding(self, text: str) -> None:
        self._report.findings.append(text)


class _LastRows:
    """The last row of each key, for a log whose changes can't be summed up: keys by their sums, rows by hashes."""

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._waiting = 0

    def add(self, sums: np.ndarray, hashes: np.ndarray, there: np.ndarray) -> None:
        """Changes in their order: of a key, its row's hash, and whether it is there after the change."""
        self._parts.append((sums, hashes, there))
        self._waiting += len(sums)
        if self._waiting >= _FOLD_ROWS:
            self._fold()

    def count_and_digest(self) -> tuple[int, int]:
        """How many rows there are in the end, and the sum of their hashes modulo 2^64."""
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


def _compare_rows(view: View, state: IndexState, definition: TableDefinition, report: BucketReport) -> None:
    """Verify every row of the index, and that none is hidden: their count and digest are what they should be."""
    digest = 0
    for rows, hashes in _rows(view, definition):
        report.rows += rows.num_rows
        digest = (digest + int(hashes.sum(dtype=np.uint64))) % 2**64
    if (report.rows, digest) != (state.row_count, state.digest):
        report.findings.append(f"the index counts {state.row_count} rows, and {report.rows} are found or others")


def _rows(view: View, definition: TableDefinition) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    layout = layout_of(definition)
    for keys, values in view.rows(SCAN_ROWS):
        yield layout.decode_found(Octets.from_list(keys), Octets.from_list(values))
