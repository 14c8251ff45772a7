"""What a log has after its index, laid over the index by a process that does not write the bucket.

Theory of operation. The process that writes a bucket publishes how far its log is durable, after each sync
(``kvstore/log/published.py``), and commits its index now and then. Another process reads the index, and over it what
the log has from there to the published end: so it sees a change as soon as the writer's caller has its answer, and also
if the writer died then. It reads each batch once. Headers are read first, and rows only once rows are asked for.

* If nobody writes the bucket, the end is where the whole batches of its log end: where a recovery would find it. What
  is after the published end is synced first.
* So an end is never beyond what was synced or belongs to a decided commit, and no crash takes back what another process
  has seen.
* Beside a writer that publishes nothing (an older kvstore), the index is what there is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

import numpy as np

from kvstore.bucket.context import BucketContext
from kvstore.bucket.merge.tail import TOGETHER_KEYS, late_runs, state_after
from kvstore.bucket.recovery import is_at_end, replay_start, synced_end
from kvstore.disk.files import Files, refusals
from kvstore.errors import CorruptBatch
from kvstore.index.index import Index, View
from kvstore.log.held_segments import HeldSegments
from kvstore.log.published import EndReader
from kvstore.log.segments import FoundBatch, KnownEnd, LogEnd, LogFiles
from kvstore.log.writer_state import WriterStates
from kvstore.memtable.sorted_rows import RowLayers
from kvstore.memtable.view import NewerView
from kvstore.meta.state import TableDefinition
from logformat.ids import Offset, WriterId
from logformat.log.batch import LAYOUTS, BatchHeader
from logformat.log.change import ChangeType
from logformat.log.index_state import IndexState
from logformat.log.published_end import PublishedEnd
from logformat.log.writer_entry import WriterEntry

LOOK_SECONDS = 0.25
"""How often a reader looks whether a bucket's writer lives, and whether a decided commit lacks its batch there."""
TOGETHER_BYTES = 4 << 20
"""Batches with up to this many bytes are decoded together."""
KEPT_MAX = 1 << 16
"""Entries and batches that an index has meanwhile are kept up to this number."""

_ADDS = np.zeros(len(ChangeType), np.int64)
_ADDS[[ChangeType.APPEND, ChangeType.INSERT]] = 1
_ADDS[ChangeType.DELETE] = -1


class Overlay:
    """What a log has from one place on; one thread at a time extends it, any thread reads views of it.

    Args:
        log: Returns the log, as its files are now: a segment whose sync failed is written again.
        definition: Returns the table, with the schemas of all batches that are published.
        start: Where it begins.
        files: Files of the store that the log belongs to, if that is open.
    """

    def __init__(
        self,
        log: Callable[[], LogFiles],
        definition: Callable[[], TableDefinition],
        start: LogEnd,
        files: Files | None = None,
    ) -> None:
        self._log = log
        self._held = HeldSegments(files)
        self._definition = definition
        self.start = start.offset
        # Replaced at once, so that an interrupt leaves it whole: how far headers are read, and each with the number of
        # rows that its batch adds.
        self._headers: tuple[LogEnd, list[tuple[BatchHeader, int]]] = start, []
        self._rows_end = start
        self._rows = RowLayers()
        self._frozen_end = start.offset  # an index with all changes before it has the rows of all frozen layers
        self._is_seen = False

    @property
    def end(self) -> Offset:
        """The offset after the last batch that was read."""
        return self._headers[0].offset

    def extend(self, end: Offset, *, rows: bool) -> None:
        """Read on, up to an offset; no less far than before, since what was shown is durable.

        Args:
            rows: Whether rows are read, too, and not headers only.

        Raises:
            CorruptBatch: A batch is damaged, or none ends there. What was read stays, and is right.
            OffsetOutOfRange: The log does not hold the changes any more.
        """
        known, headers = self._headers
        end = max(end, known.offset)
        if end > known.offset:
            batches = list(self._log().batches_at(known, end))
            if batches[-1].header.next_offset != end:
                raise CorruptBatch("No batch of a log ends where it should; run `kvstore check`.", offset=end)
            reached = batches[-1].after
            self._headers = reached, [*headers, *((each.header, _added_rows(each)) for each in batches)]
            if rows and self._rows_end == known:
                self._read_rows(batches)
                self._rows_end = reached
        if rows and self._rows_end.offset < end:
            self._read_rows(self._log().batches_at(self._rows_end, end))
            self._rows_end = self._headers[0]

    def begin_at(self, start: LogEnd) -> None:
        """Drop what an index has that has all changes before a place, if that is much, and read no more of it.

        What is there then is frozen: it is dropped together, once an index has all of it.
        """
        if self._rows_end.offset < start.offset:
            self.start = self._frozen_end = start.offset
            self._rows, self._rows_end = RowLayers(), start
        elif self._frozen_end <= start.offset and max(len(self._rows), len(self._headers[1])) > KEPT_MAX:
            self.start, self._frozen_end = self._frozen_end, self._rows_end.offset
            self._rows = self._rows.without_frozen().freeze()
        else:
            return
        end, headers = self._headers
        self._headers = end, [each for each in headers if each[0].base_offset >= self.start]

    def state_after(self, state: IndexState) -> IndexState:
        """The state of an index, moved on to the end of the overlay; the digest is that of the index."""
        newer = self._after(state)
        if not newer:
            return state
        row_count = state.row_count + sum(added for _, added in newer)
        headers = (header for header, _ in newer)
        return state_after(state, headers, row_count, state.digest, state.next_count)._replace(merging=None)

    def view(self, tree: View, state: IndexState) -> View:
        """A view of an index, moved on to the end of the overlay.

        Args:
            state: State of the view.
        """
        newer = self.state_after(state)
        if newer is state:
            return tree
        headers = [header for header, _ in self._after(state)]

        def writers(_: Sequence[WriterId] | None) -> dict[WriterId, WriterEntry]:
            states = WriterStates(tree.writers())
            for header in headers:
                states.remember(header)
            return states.all()

        self._is_seen = True
        return NewerView(tree, newer, self._rows, writers)

    def find(self, key: bytes) -> bytes | None:
        """The row of a key, empty if it was deleted; None if the index has it, or that there is none."""
        for layer in self._rows.dicts:
            if (row := layer.get(key)) is not None:
                return row
        return None

    def _read_rows(self, batches: Iterable[FoundBatch]) -> None:
        definition = self._definition()
        if definition.primary_key is not None:
            for run in late_runs(batches, definition, TOGETHER_BYTES, self._held):
                if len(run) >= TOGETHER_KEYS:
                    self._rows = self._rows.over(run)
                else:
                    self._rows = self._rows.added(dict(run.items()), in_place=not self._is_seen)
                    self._is_seen = False

    def _after(self, state: IndexState) -> list[tuple[BatchHeader, int]]:
        """Batches that an index lacks."""
        headers = self._headers[1]
        return headers[bisect_left(headers, state.applied_offset, key=lambda each: each[0].base_offset) :]


def _added_rows(batch: FoundBatch) -> int:
    """How many rows a batch adds, as far as its change types say it."""
    header = batch.header
    if header.append_only:
        return header.record_count
    position = LAYOUTS[header.magic].size + header.statistics_length
    return int(_ADDS[np.frombuffer(batch.data, np.uint8, header.record_count, position)].sum())


class OverlayReader:
    """Finds how far a bucket's log is to be read, and keeps its overlay.

    Every call is made under the lock with which the handle opens and closes the bucket.

    Args:
        context: Context of the bucket.
        is_written: Whether another process writes the bucket; None if that can't be said, or one recovers it.
    """

    def __init__(self, context: BucketContext, is_written: Callable[[], bool | None]) -> None:
        self._context = context
        self._is_written = is_written
        bucket, files = context.paths, context.files
        self._published = EndReader(bucket.directory, bucket.identity, files)
        self._known_end = KnownEnd(bucket.log, files)
        self._overlay: Overlay | None = None
        self._record: PublishedEnd | None = None
        self._has_rows = False
        self._gone: UUID | None = None
        self._look_next = 0.0

    def at(self, state: IndexState, *, rows: bool = False) -> Overlay | None:
        """The overlay from an index's state on, up to what is there now; None if the index has all of it.

        Args:
            rows: Whether rows are asked for, and not the state only.

        Raises:
            CorruptBatch: The log is damaged.
            OffsetOutOfRange: The log begins after the state.
        """
        self._has_rows = False
        record = self._record = self._published.read()
        if record is None or record.offset < state.latest_offset:
            overlay = self._unpublished(state, rows=rows)
        elif self._is_gone(record.owner):
            start = self._known_up_to(state)
            overlay = self._synced(state, start, self._whole_end(state, start), rows=rows)
        else:
            overlay = self._extended(state, record.offset, rows=rows)
        self._has_rows = rows
        return overlay

    def newest(self, key: bytes, index: Index) -> bytes | None:
        """What the log has of a key; see :meth:`Overlay.find`. Raises what :meth:`at` raises."""
        if not self.is_as_read():
            self.at(index.committed_state(), rows=True)
        return self.find(key)

    def is_as_read(self) -> bool:
        """Whether the rows after the index were read a short time ago, and the log's writer has said nothing since."""
        is_soon = self._has_rows and self._context.clock.monotonic() < self._look_next
        return is_soon and self._published.is_as_read()

    def find(self, key: bytes) -> bytes | None:
        """What was read of a key; see :meth:`Overlay.find`."""
        assert self._overlay is not None
        return self._overlay.find(key)

    def is_ahead(self, state: IndexState) -> bool:
        """Whether an index has changes that were never durable, and that the log lost."""
        if state.applied_offset <= state.synced_offset:
            return False
        try:
            self._log().position_of(state.applied_offset)
        except CorruptBatch:
            return True
        return False

    def close(self) -> None:
        """Close the file of the published end, and forget the overlay."""
        self._published.close()
        self._overlay, self._has_rows = None, False

    def _is_gone(self, owner: UUID) -> bool:
        """Whether an owner had stopped writing at the last check, or the bucket was being recovered, perhaps by it."""
        is_to_look = self._is_to_look()
        if owner == self._gone:
            return True
        if not is_to_look:
            return False
        written = self._is_written()
        if written is False:
            self._gone = owner  # for good: a process that takes the bucket is another owner
        return not written

    def _is_to_look(self) -> bool:
        """Whether a check for a living writer is due: there was none yet, or the last one is ``LOOK_SECONDS`` old."""
        now = self._context.clock.monotonic()
        if now < self._look_next and self._overlay is not None:
            return False
        self._look_next = now + LOOK_SECONDS
        return True

    def _unpublished(self, state: IndexState, *, rows: bool) -> Overlay | None:
        """The overlay if no record says how far it is to be read."""
        start = end = self._known_up_to(state)
        if self._is_to_look():
            end = self._whole_end(state, start)
            if end > start and self._is_written():
                if self._published.read() is not self._record:
                    # It has just begun, and may have recovered more than the state has.
                    return self.at(state, rows=rows)
                end = start
        return self._synced(state, start, end, rows=rows)

    def _known_up_to(self, state: IndexState) -> Offset:
        """How far the index and the overlay are: what was shown once is durable, and every later owner keeps it."""
        known, reached = self._overlay, state.latest_offset
        return reached if known is None else max(known.end, reached)

    def _whole_end(self, state: IndexState, start: Offset) -> Offset:
        """Where the whole batches after an offset end."""
        bucket, files = self._context.paths, self._context.files
        with refusals(bucket.log):
            if start == state.applied_offset and is_at_end(bucket, state, files):
                return start
            return self._known_end.after(start, self._log())

    def _synced(self, state: IndexState, start: Offset, end: Offset, *, rows: bool) -> Overlay | None:
        if end > start:
            self._log().sync(start)
        return self._extended(state, end, rows=rows)

    def _extended(self, state: IndexState, end: Offset, *, rows: bool) -> Overlay | None:
        overlay, start = self._overlay, state.applied_offset
        if overlay is None or not overlay.start <= start < overlay.end:
            context = self._context
            overlay = Overlay(self._log, context.catalog.definition, self._end_of(state), context.files)
        else:
            overlay.begin_at(self._end_of(state))
        self._overlay = overlay
        overlay.extend(end, rows=rows)
        return overlay if start < overlay.end else None

    def _end_of(self, state: IndexState) -> LogEnd:
        """Where in the log an index's changes end."""
        try:
            return replay_start(state, self._log())
        except CorruptBatch:
            if state.applied_offset < state.synced_offset:
                raise
            return synced_end(state)._replace(offset=state.applied_offset)  # see `is_ahead`

    def _log(self) -> LogFiles:
        return LogFiles(self._context.paths.log, self._context.paths.identity, self._context.files)
