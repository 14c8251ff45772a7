"""The write path of one bucket: it checks a request, applies it to the memtable, and encodes its batch for the log.

Theory of operation. A request first passes the checks of its writer's epoch and sequence; a duplicate gets its first
answer. Then its rows are merged with those that are there, which the memtable finds, in itself or in the index. The
change records of the request become one batch, which the committer appends to the log. Until then the new rows are
pending in the memtable; then they are published.

* Requests of a group take effect one after the other.
* A refused request changes nothing.
* Nothing here writes the index but the merge of the memtable into it. What it lacks can be replayed from the log.
* One thread at a time uses the write path: recovery's, then the one that has the bucket's turn
  (:mod:`kvstore.bucket.turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import NamedTuple, TypeAlias

import lmdb
import numpy as np
import pyarrow as pa

from kvstore.bucket.conditional import decided
from kvstore.bucket.merge import cdc, tail
from kvstore.bucket.merge.identical import without_identical
from kvstore.bucket.merge.native import COMPRESSED_RECORDS_MIN, merge_natively
from kvstore.bucket.merge.replay import Effect, digest_of, effect_of
from kvstore.bucket.merge.small import merge_small
from kvstore.clock import Clock
from kvstore.errors import InvalidRequest, WriterRejected
from kvstore.index.index import Index
from kvstore.indexing.building import go_on, make_entries, make_some_entries
from kvstore.indexing.entries import TableEntries
from kvstore.indexing.unique import UniqueIndexes
from kvstore.kernel.writes import Encoded
from kvstore.log.log import Log
from kvstore.log.segment_writer import EncodedBatch
from kvstore.log.segments import FoundBatch, LogFiles
from kvstore.log.writer_state import STEP_MS_MAX, WriterStates, uncounted_after
from kvstore.memtable.memtable import Memtable
from kvstore.meta.state import TableDefinition
from kvstore.meta.writers import NO_WRITERS, OpenCommit, TableWriters
from kvstore.request.auto_increment import Ids, next_count_after, numbered
from kvstore.request.encoded import AddedRequest, ComparedRequest, SmallRequest, Submitted, encoded_writes
from kvstore.request.preparation import up_to_date
from kvstore.request.request import ConditionalRequest, Grouping, Request
from kvstore.request.results import AppendResult
from kvstore.request.row_layout import grouped, layout_of
from kvstore.request.rules import OVERWRITE, engine_of_table
from kvstore.request.take_rows import take_rows
from kvstore.request.targets import filled
from logformat.checksum import key_sums
from logformat.ids import NO_WRITER, Offset, WriterId
from logformat.log.batch import (
    APPEND_ONLY,
    NAMED_WRITER,
    BatchHeader,
    LogBatch,
    encode_parts,
)
from logformat.log.index_state import IndexState
from merge_engines.engine import Merged, MergeEngine, Operations
from merge_engines.last_row import LastRow

REPLAY_BYTES_MAX = 256 << 20
"""While changes are replayed, the memtable is merged when it takes this much."""

_NO_CHANGE_TYPES = np.zeros(0, np.uint8)
_NO_ROWS = pa.record_batch([], names=[])


class Applied(NamedTuple):
    """Result of a request: its answer, and the batch to append; None for a duplicate."""

    result: AppendResult
    batch: EncodedBatch | None


Outcome: TypeAlias = Applied | InvalidRequest | WriterRejected | None
"""Result of a request; or why it was refused, or None if it does not apply now: then nothing of it was written."""


class WritePath:
    """Everything that changes one bucket.

    Args:
        definition: The table.

    Attributes:
        memtable: What the log has and the index lacks.
        grow: Enlarges the map of the index.
        named: Named writers, as the catalog has them.
    """

    def __init__(self, definition: TableDefinition, index: Index, log: Log, clock: Clock) -> None:
        self._clock = clock
        self.memtable = Memtable(index)
        self.grow: Callable[[], None] = index.environment.grow
        self.log = log
        self._state: IndexState
        self._writers: WriterStates
        self._stamped: int | None = None
        self.named: TableWriters = NO_WRITERS
        self._take_over(definition)
        self.restore()

    def use(self, definition: TableDefinition) -> None:
        """Take over a newer definition of the table."""
        former = self._entries
        self._take_over(definition)
        go_on(self._entries, former)

    def _take_over(self, definition: TableDefinition) -> None:
        self.definition = definition
        self._layout = layout_of(definition)
        self._entries = TableEntries(definition)
        self.memtable.entries = self._entries if definition.indexes else None
        self._unique = UniqueIndexes.of(definition, self.memtable)
        self._has_entries = False

    @property
    def state(self) -> IndexState:
        """State of the bucket with the changes that are pending."""
        return self._state

    def has(self, commit: OpenCommit) -> bool:
        """Whether the bucket has its batch of a commit."""
        return self._writers.has(commit.writer_id, commit.sequence)

    def last_sequences(self) -> dict[WriterId, int]:
        """Last sequence of each remembered writer, expired or not."""
        return {id: entry.batches[-1].sequence for id, entry in self._writers.all().items()}

    def apply_all(self, group: Sequence[Submitted]) -> list[Outcome]:
        """Apply requests in order; see :meth:`apply`.

        Raises:
            CorruptData: A stored row is damaged; :meth:`restore` the memtable.
        """
        outcomes: list[Outcome] = []
        for each in group:
            try:
                request = each if isinstance(each, (SmallRequest, Request)) else self._unconditional(each)
                if request is not None and not isinstance(request, Applied):
                    request = self.apply(up_to_date(request, self.definition))
                outcomes.append(request)
            except (InvalidRequest, WriterRejected) as error:
                outcomes.append(error)
        return outcomes

    def _unconditional(
        self, given: ConditionalRequest | ComparedRequest | AddedRequest
    ) -> Request | SmallRequest | Applied | None:
        """A request, if its condition holds where it has one; or the answer that it had before."""
        if isinstance(given, ConditionalRequest):
            return decided(given, self.definition, self.memtable.get)
        if (first := self._first_answer(given.then, self._now_ms())) is not None:
            return first
        return given.decided(self.definition, self.memtable.get)

    def apply(self, request: Request | SmallRequest, *, decided: bool = False) -> Applied:
        """Apply a request to the memtable and encode its batch; the committer appends it later.

        Args:
            request: See :func:`up_to_date`.
            decided: Whether it belongs to a decided commit, which is valid even if the writer was fenced since.

        Raises:
            OutOfOrderSequence, WriterFenced: See :meth:`WriterStates.check`. Nothing was changed.
            InvalidRequest: Its content is refused. Nothing was changed.
            CorruptData: A stored row is damaged; :meth:`restore` the memtable.
        """
        timestamp = self._now_ms()
        is_counted = request.writer_id != NO_WRITER
        if is_counted and (first := self._first_answer(request, timestamp, decided=decided)) is not None:
            return first
        if self._unique is None and (encoded := self._merge_encoded(request, timestamp)) is not None:
            return _applied(encoded)
        if isinstance(request, SmallRequest):
            request = request.request()
        if self.definition.primary_key is None:
            return _applied(self._append_rows(request, timestamp))
        return _applied(self._merge_rows(request, timestamp, decided=decided))

    def publish(self) -> None:
        """Publish what was applied; its batches are in the log."""
        self.memtable.publish(self._state)

    def commit(self) -> None:
        """Make the log durable, and merge what is published into the index.

        Raises:
            LogFailed: See :meth:`Log.sync`.
            StoreFull, lmdb.Error: See :meth:`Index.commit` and :attr:`grow`. The memtable is as it was.
        """
        while self.memtable.is_merging:
            self.merge_slice()
        self.log.sync()
        end, state = self.log.durable, self._state
        if not self.memtable.is_merged or end != (state.synced_base, state.synced_position, state.synced_offset):
            self.begin_merge()
            self.commit()

    def begin_merge(self) -> None:
        """Make the log durable, and begin to merge what is published; see :meth:`Memtable.begin_merge`.

        Raises:
            LogFailed: See :meth:`Log.sync`.
        """
        self.log.sync()
        end = self.log.durable
        self._state = self._state._replace(synced_base=end.base, synced_position=end.position, synced_offset=end.offset)
        self.memtable.begin_merge(self._state)

    def merge_slice(self, share: float = 1.0) -> bool:
        """Merge the next slice; see :meth:`Memtable.merge_slice`.

        Raises:
            StoreFull, lmdb.Error: See :meth:`Index.commit` and :attr:`grow`. The memtable is as it was.
        """
        while True:
            try:
                is_whole = self.memtable.merge_slice(share)
                break
            except lmdb.MapFullError:
                self.grow()
        if not self.memtable.is_merging:
            self._forget_newer()
        return is_whole

    def are_entries_due(self) -> bool:
        """Whether :meth:`make_entries` has to be called before anything else is written."""
        if not self._has_entries:
            with self.memtable.index.view() as view:
                self._has_entries = not self._entries.are_due(view)
        return not self._has_entries

    def make_entries(self) -> None:
        """Make the entries of secondary indexes that the index of the bucket lacks; everything published is merged.

        Raises:
            StoreFull, lmdb.Error: See :meth:`Index.commit`.
            CorruptData: A row is damaged.
        """
        make_entries(self._entries, self.memtable.index, self.grow)
        self._has_entries = True

    def make_some_entries(self) -> int | None:
        """See :func:`kvstore.indexing.building.make_some_entries`; errors are the same."""
        return make_some_entries(self._entries, self.memtable.index, self.grow)

    def roll(self) -> None:
        """Begin a new segment of the log; every applied batch must be appended. See :meth:`Log.roll`."""
        self.log.roll(self._writers.snapshot(self.log.end.offset))

    def close(self) -> None:
        """Close the log and the index; what is not merged can be replayed."""
        self.log.close(is_merged=self.memtable.is_merged)
        self.memtable.index.close()

    def catch_up(self, log: LogFiles, bytes_max: int | None = None) -> None:
        """Take the changes of the log that are not here into the memtable; they are durable.

        Args:
            bytes_max: The memtable is merged into the index when it takes this much, in bytes; 256 MiB if not given.

        Raises:
            StoreFull: The index can't grow.
            CorruptBatch: The log is damaged.
        """
        if self._state.applied_offset >= self.log.durable.offset:
            return
        if (after := self._state.merging) is not None:
            # What these changes replaced is not known any more, since the index has some of them; but the count and
            # digest after them are.
            self._take(log.batches(self._state.applied_offset, after.applied_offset), looks=False)
            self._state = self._state._replace(row_count=after.row_count, digest=after.digest, merging=None)
            self.publish()
        tail_batches = log.batches(self._state.applied_offset, self.log.durable.offset)
        self._take(tail_batches, bytes_max=REPLAY_BYTES_MAX if bytes_max is None else bytes_max)

    def _take(self, logged: Iterable[FoundBatch], *, looks: bool = True, bytes_max: int | None = None) -> None:
        """Replay batches; everything is merged whenever the memtable takes so much memory."""
        batches = ((each.header, each.data) for each in logged)
        for part in tail.parts_of(batches, self.definition, self._state):
            self._forget_newer()
            effect = Effect(0)
            if part.final is None:
                effect = Effect(sum(header.record_count for header in part.headers))
            else:
                if looks:
                    with self.memtable.view() as view:
                        effect = effect_of(part.final, view.find)
                self.memtable.put(part.final.run)
            self._move(part.headers, effect, part.next_count)
            self.publish()
            if bytes_max is not None and self.memtable.published.size >= bytes_max:
                self.commit()

    def _forget_newer(self) -> None:
        if self._unique is not None:
            self._unique.forget()

    def _now_ms(self) -> int:
        """Commit timestamp of a batch that is applied now.

        It never goes back, except once after the bucket was opened: if the last timestamp is more than an hour ahead of
        the clock, the clock was wrong then.
        """
        last, now = self._state.last_timestamp, self._clock.now_ms()
        if self._stamped is None:
            self._stamped = last if last - now <= STEP_MS_MAX else now
        self._stamped = max(self._stamped, now)
        return self._stamped

    def _uncounted_ms(self, timestamp: int) -> int:
        if not self._state.applied_offset:
            return 0
        return uncounted_after(self._state.last_timestamp, self._state.uncounted_ms, timestamp)

    def _first_answer(self, request: Request | SmallRequest, now_ms: int, *, decided: bool = False) -> Applied | None:
        """The answer of a duplicate; see :meth:`TableWriters.check` and :meth:`WriterStates.check`, also for errors."""
        if not decided:
            self.named.check(request.writer_id, request.writer_epoch)
        now_ms -= self._uncounted_ms(now_ms)
        last_offset = Offset(self._state.applied_offset + max(request.count - 1, 0))
        seen = self._writers.check(
            request.writer_id, request.sequence, request.writer_epoch, now_ms=now_ms, last_offset=last_offset
        )
        if seen is None:
            return None
        return Applied(AppendResult(seen.base_offset, seen.last_offset, True, seen.timestamp), None)

    def _append_rows(self, request: Request, timestamp: int) -> EncodedBatch:
        rows = filled(request.changes.rows, self.definition.schema)
        batch = self._batch(request, timestamp, rows, _NO_CHANGE_TYPES, APPEND_ONLY)
        encoded = self._encoded(batch)
        self._note(batch, Effect(rows.num_rows))
        return encoded

    def _merge_encoded(self, request: Request | SmallRequest, timestamp: int) -> EncodedBatch | None:
        """Merge rows as they are stored: by the kernel, or if they are few; None if it needs the long way."""
        writes = request.writes if isinstance(request, SmallRequest) else encoded_writes(self.definition)
        if writes is None:
            return None
        batch = self._batch(request, timestamp, _NO_ROWS, _NO_CHANGE_TYPES, count=0)
        merged = merge_natively(writes, request, self.memtable, batch, self.definition.options.compression)
        if merged is None and (merged := merge_small(writes, request, self.memtable.get, batch)) is None:
            return None
        batch.record_count, batch.last_offset_delta = merged.records, max(merged.records - 1, 0)
        self.memtable.put(merged.rows)
        self._move([batch], Effect(merged.added_rows, merged.digest), self._state.next_count)
        return EncodedBatch.of(batch, merged.pieces)

    def _merge_rows(self, request: Request, timestamp: int, *, decided: bool = False) -> EncodedBatch:
        """Apply operations whose result depends on the stored rows; these change last.

        Raises:
            UniqueViolation: Nothing was changed.
        """
        options = self.definition.options
        grouping: Grouping | Encoded | None = request.grouping
        if grouping is None and isinstance(request.encoded, Encoded):
            grouping = request.encoded
        if grouping is None:
            grouping = grouped(self._layout, request.changes.rows)
        incoming = filled(request.changes.rows, self.definition.schema)
        listed, sums = grouping.keys.to_list(), key_sums(grouping.keys)
        lengths, values = self.memtable.find(grouping.keys)
        there = lengths > 0
        keys_of = take_rows(incoming, grouping.order[grouping.starts[there]])
        old_rows, old_hashes = self._layout.decode(values, sums[there], keys_of)
        operations = self._operations(request, grouping, there, old_rows, incoming)
        merged = self._engine_of(request).merge(operations)
        if options.auto_increment is not None:
            merged = numbered(merged, operations, options.auto_increment, self._ids, self._state.next_count)
        if options.skip_identical_updates or request.skips_identical:
            merged = without_identical(merged, operations, self._layout)
        change_types, rows = self._records(request, merged, grouping.order)
        batch = self._batch(request, timestamp, rows, change_types)
        encoded = self._encoded(batch)
        final = merged.after[grouping.lasts]
        changed = final != operations.stored
        put, removed = changed & (final >= 0), changed & (final < 0)
        schema_id = self.definition.schema_id
        new_values, new_hashes = self._layout.encode_values(take_rows(merged.pool, final[put]), sums[put], schema_id)
        rows_now = dict(zip(compress(listed, put), new_values.to_list(), strict=True))
        keys_removed = list(compress(listed, removed))
        if self._unique is not None:
            if decided:  # tested before, and never refused
                self._unique.note(rows_now)
            else:
                self._unique.check(rows_now, keys_removed)
        self.memtable.put(rows_now)
        self.memtable.delete(keys_removed)
        added = int(np.count_nonzero(put & ~there)) - int(np.count_nonzero(removed))
        gone = old_hashes[changed[there]]
        digest = digest_of(new_hashes) - digest_of(gone)
        self._note(batch, Effect(added, digest))
        return encoded

    def _engine_of(self, request: Request) -> MergeEngine:
        return OVERWRITE if request.overwrite else engine_of_table(self.definition)

    def _targets_of(self, request: Request) -> frozenset[str] | None:
        """Columns that a partial request sets; None if these are all columns of the current table."""
        targets, automatic = request.targets, self.definition.options.auto_increment
        if targets is None or set(self._layout.schema.names) <= {*targets, automatic}:
            return None
        return targets

    def _operations(
        self,
        request: Request,
        grouping: Grouping | Encoded,
        there: np.ndarray,
        old_rows: pa.RecordBatch,
        incoming: pa.RecordBatch,
    ) -> Operations:
        return Operations(
            pool=pa.concat_batches([old_rows, incoming]) if old_rows.num_rows else incoming,
            stored=np.where(there, there.cumsum() - 1, -1),
            order=grouping.order,
            starts=grouping.starts,
            lasts=grouping.lasts,
            is_delete=request.changes.is_delete.to_numpy(zero_copy_only=False),
            targets=self._targets_of(request),
            key_names=self._layout.key_names,
            automatic=self.definition.options.auto_increment,
        )

    def _records(self, request: Request, merged: Merged, order: np.ndarray) -> tuple[np.ndarray, pa.RecordBatch]:
        """See :func:`cdc.records_of`."""
        options = self.definition.options
        # Without preimages and without a look at the row before, an insert can't be recognized.
        looks = options.auto_increment is not None or self._targets_of(request) is not None
        looks = looks or not isinstance(self._engine_of(request), LastRow)
        preimages = options.changelog_image == "full"
        return cdc.records_of(merged, order, preimages=preimages, inserts=preimages or looks)

    def _batch(
        self,
        request: Request | SmallRequest,
        timestamp: int,
        rows: pa.RecordBatch,
        change_types: np.ndarray,
        attributes: int = 0,
        count: int | None = None,
    ) -> LogBatch:
        if count is None:  # else encoded rows are merged, and then there is their count
            rows, count = filled(rows, self.definition.stored), rows.num_rows
        if request.writer_id != NO_WRITER and self.named.is_named(request.writer_id):
            attributes |= NAMED_WRITER
        return LogBatch(
            base_offset=self._state.applied_offset,
            last_offset_delta=max(count - 1, 0),
            record_count=count,
            commit_timestamp=timestamp,
            uncounted_ms=self._uncounted_ms(timestamp),
            schema_id=self.definition.schema_id,
            attributes=attributes,
            writer_id=request.writer_id,
            batch_sequence=request.sequence,
            writer_epoch=request.writer_epoch,
            durable_end=self.log.durable.offset,
            table_id=self.definition.id,
            bucket_id=self._state.bucket_id,
            change_types=change_types,
            rows=rows,
        )

    def _encoded(self, batch: LogBatch) -> EncodedBatch:
        small = batch.record_count < COMPRESSED_RECORDS_MIN
        pieces = encode_parts(batch, compression=None if small else self.definition.options.compression)
        return EncodedBatch.of(batch, pieces)

    def _note(self, batch: LogBatch, effect: Effect) -> None:
        """Record a batch whose rows are pending: its writer, and the new state."""
        column, count = self.definition.options.auto_increment, self._state.next_count
        if column is not None and batch.record_count:
            count = next_count_after(batch.rows, column, self._ids, count)
        self._move([batch], effect, count)

    def _move(self, headers: Sequence[BatchHeader], effect: Effect, next_count: int) -> None:
        """Move writers, pending, and the state on by batches."""
        for header in headers:
            for writer_id, entry in self._writers.remember(header).items():
                self.memtable.put_writer(writer_id, entry)
        self._state = tail.state_after(
            self._state,
            headers,
            self._state.row_count + effect.added_rows,
            (self._state.digest + effect.digest) % 2**64,
            next_count,
        )

    @property
    def _ids(self) -> Ids:
        return Ids(self._state.bucket_id, self.definition.buckets)

    def restore(self) -> None:
        """Drop what is pending, after an error: its batches are not in the log."""
        self.memtable.drop()
        self._forget_newer()
        with self.memtable.view() as view:
            self._state = view.state()
            self._writers = WriterStates(view.writers())


def _applied(encoded: EncodedBatch) -> Applied:
    result = AppendResult(encoded.base_offset, Offset(encoded.next_offset - 1), False, encoded.timestamp)
    return Applied(result, encoded)
