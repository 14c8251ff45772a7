"""A named reader of a table's changes, whose position moves with what it has acknowledged.

* The position is that of the consumer of this name in the catalog: the log keeps what comes after it.
* It is an offset of each bucket, never between both halves of an update. What a filter leaves out moves it, too, once
  all that was delivered before is acknowledged.
* The catalog has the filter with the position: what was read under a name with one goes on with no other.
* Acknowledgements of ``ack_ms`` are one edit of the catalog: a call makes it once they are due, before the reader
  waits, and at its end.
* While the current rows are delivered, there is no position yet, only a lease on the log: so a reader that dies among
  them begins again with all rows, as of then. Once the last of them is acknowledged, there is one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import ReferenceType, ref

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import shown
from kvstore.bucket.reads import BucketReads
from kvstore.clock import Clock
from kvstore.commit.consumers import LEASE_SECONDS, Consumers
from kvstore.errors import InvalidRequest, OffsetOutOfRange, StoreError
from kvstore.history.shape import Shape, check_shapes
from kvstore.indexing.filters import digest_of
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import Start, changelog_schema, changes_between, inserts_of, offset_of
from kvstore.read.follow import Waits
from kvstore.read.scan import rows_now
from kvstore.request.partition import bound_in
from logformat.ids import BucketId, Offset

QUIET_SECONDS = 1.0
"""How often the position is moved over what a filter leaves out."""
FILTER_CHARACTERS = 200
"""Of the text of a filter, which the catalog keeps for messages."""
_ENDED: Any = object()


@dataclass(frozen=True, slots=True)
class Feed:
    """A table as its subscriptions read it.

    Attributes:
        buckets: In order.
        definition: The table when the subscription began: columns are called by its names.
        latest: Returns the definition with the schemas of all rows; raises once the table is dropped, or the store
            closed.
        consumers: Consumers of the table.
    """

    buckets: Sequence[BucketReads]
    definition: TableDefinition
    latest: Callable[[], TableDefinition]
    consumers: Consumers
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of the position.

    Attributes:
        batch: What was delivered; None where a filter has left everything out.
        position: The offset after it; None for current rows that are not the last of their bucket.
    """

    batch: pa.RecordBatch | None
    bucket: int
    position: Offset | None


class _Given(NamedTuple):
    """A step that was made for the reader, which may never acknowledge it: the batch is not kept for that."""

    batch: ReferenceType[pa.RecordBatch] | None
    bucket: int
    position: Offset | None


class Subscription(Iterator[pa.RecordBatch]):
    """Batches of changes that come again until they are acknowledged; a context manager.

    Made by :meth:`kvstore.Table.subscribe`; for one thread, or for one task of asyncio (``async for``). A second one
    that asks for a batch meanwhile gets InvalidRequest; any thread may close it. A wait that is cancelled loses
    nothing: the next one gets its batch. After a read that failed or was interrupted it has ended, which the next call
    says; what was not acknowledged comes again under its name.

    Args:
        feed: The table.
        name: Name of the consumer.
        start, filter, columns, follow, ack_ms: See :meth:`kvstore.Table.subscribe`, also for errors.
    """

    def __init__(
        self,
        feed: Feed,
        name: str,
        start: Start,
        filter: pc.Expression | None,
        columns: Sequence[str] | None,
        follow: bool,
        ack_ms: int,
    ) -> None:
        self._feed = feed
        self._ack_seconds = ack_ms / 1000
        self._name = name
        self._schema = changelog_schema(feed.definition, columns)
        self._names = changelog_schema(feed.definition).names
        self._shape: Shape | None = None
        if filter is not None:
            check_shapes(feed.definition, filter)
            self._shape = Shape(feed.definition, filter)
        self._positions: dict[int, int] = {}
        """The offset after what is acknowledged, for each bucket with all its current rows acknowledged."""
        self._is_owed = False
        """Whether the catalog has yet to get this position."""
        self._is_named = False
        """Whether the catalog has had a position of this name."""
        self._steps: deque[_Given] = deque()
        """Those that are not acknowledged, in order."""
        self._read: dict[int, Offset]
        self._leased = self._moved = feed.clock.monotonic()
        buckets = [BucketId(bucket) for bucket in range(len(feed.buckets))]
        known = feed.consumers.position(name)
        self._filter = self._filter_under(feed.consumers.filter_of(name), filter)
        self._is_full = known is None and isinstance(start, str) and start == "full"
        if known is None:
            ends: dict[int, Offset] = {bucket: feed.buckets[bucket].shown().applied_offset for bucket in buckets}
            if self._is_full:
                self._lease(ends)
                known = {**ends}
            else:
                known = {
                    bucket: offset_of(
                        "start", bound_in("start", start, bucket, buckets), feed.buckets[bucket].log, ends[bucket]
                    )
                    for bucket in buckets
                }
                feed.consumers.put(name, known, self._filter)
        self._read = {bucket: Offset(known[bucket]) for bucket in buckets}
        ended = {int(bucket): feed.buckets[bucket].shown().applied_offset for bucket in buckets}
        self._until = None if follow else ended
        if not self._is_full:
            self._positions, self._is_named = dict(known), True
        self._logs = {bucket: feed.buckets[bucket].log for bucket in buckets}
        self._waits = Waits(feed.buckets)
        self._batches = self._all()
        self._ready: pa.RecordBatch | None = None
        """The last batch, until its reader has it: a call that fails or is cancelled leaves it for the next one."""
        self._error: BaseException | None = None
        """What has ended the batches before their end."""
        self._is_read = False
        """Whether a thread or task waits for a batch."""

    @property
    def name(self) -> str:
        """Name of the consumer."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """Columns of the batches."""
        return self._schema

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __next__(self) -> pa.RecordBatch:
        with self._reading():
            batch = self._awaited()
        if batch is None:
            raise StopIteration
        return self._taken(batch)

    def _awaited(self) -> pa.RecordBatch | None:
        while not self._waits.is_over and (batch := self._next()) is not _ENDED:
            if batch is not None:
                self._before_it_is_given()
                return batch
            self._move_quietly()
            self._waits.wait()
        self._end()
        return None

    def _next(self) -> Any:
        """The batch that waits for its reader, or else the next one; None if there is none now."""
        if self._ready is not None:
            return self._ready
        if self._error is not None:
            raise InvalidRequest(
                "An earlier call failed or was interrupted, and this subscription has ended; close it and subscribe "
                "again: what was not acknowledged comes again.",
                name=self._name,
                reason=str(self._error) or type(self._error).__name__,
            ) from self._error
        return next(self._batches, _ENDED)

    def _taken(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Nothing comes between this and the return: neither an interrupt nor a cancelled wait loses a batch.
        self._ready = None
        return batch

    def _before_it_is_given(self) -> None:
        self._waits.found()
        self._renew()
        self._settle(at_once=False)

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        # A thread reads while a batch is awaited; it has ended before another may read.
        with self._reading(), ThreadPoolExecutor(1, "kvstore-follow") as thread:
            batch = await self._awaited_in(thread)
        if batch is None:
            raise StopAsyncIteration
        return self._taken(batch)

    async def _awaited_in(self, thread: ThreadPoolExecutor) -> pa.RecordBatch | None:
        """:meth:`_awaited` for asyncio."""
        do = partial(asyncio.get_running_loop().run_in_executor, thread)
        while not self._waits.is_over and (batch := await do(self._next)) is not _ENDED:
            if batch is not None:
                await do(self._before_it_is_given)
                return batch
            await do(self._move_quietly)
            await self._waits.wait_async()
        await do(self._end)
        return None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if self._is_read:
            raise InvalidRequest(
                "Another thread or task waits for a batch of this subscription; give each a subscription of its own, "
                "under another name.",
                name=self._name,
            )
        self._is_read = True  # Python changes threads, and looks for signals, at calls and loops: not since the look
        try:
            yield
        finally:
            self._is_read = False

    def _end(self) -> None:
        self._batches.close()
        self._move_quietly(at_once=True)

    def ack(self, batch: pa.RecordBatch | None = None) -> None:
        """Acknowledge a batch, and all that were delivered before it; durable on return, or as ``ack_ms`` says.

        Args:
            batch: One that this subscription has delivered; None for all of them.

        Raises:
            InvalidRequest: It has not delivered the batch, or it is acknowledged already; or the name was given up
                (``store.drop_consumer``). Nothing was moved.
            NoSuchTable, StoreClosed, StoreFull, LogFailed: The position is where it was.
        """
        if batch is None:
            ready = 0 if self._ready is None else self._count_to(self._ready)
            count = ready - 1 if ready else len(self._steps)
        else:
            count = self._count_to(batch)
            if not count or batch is self._ready:
                raise InvalidRequest("Acknowledge a batch that this subscription has delivered, and each only once.")
        self._pass(count)

    def _count_to(self, batch: pa.RecordBatch) -> int:
        """Number of steps up to that of a batch; 0 if it has none."""
        counts = (count for count, step in enumerate(self._steps, 1) if step.batch and step.batch() is batch)
        return next(counts, 0)

    def close(self) -> None:
        """End the reading. What was not acknowledged comes again; a second call does nothing.

        A thread or task that waits for a batch gets one that has just been read, or the end.

        Raises:
            NoSuchTable, StoreClosed, StoreFull, LogFailed: What was acknowledged within ``ack_ms`` comes again.
        """
        self._waits.end()
        if not self._is_read:  # else the thread or task that reads ends it
            self._batches.close()
            self._settle(at_once=True)

    def _filter_under(self, known: str | None, filter: pc.Expression | None) -> str:
        """What the catalog keeps of the filter, beside the position.

        Args:
            known: What it has of the last one that was read with under this name; None if nothing.

        Raises:
            InvalidRequest: It is another one.
        """
        stored = self._feed.definition.stored.names
        digest = "" if filter is None else digest_of(filter, stored)
        if known is not None and known.partition(" ")[0] != digest:
            raise InvalidRequest(
                "What has read under this name had another filter, and rows would be missing or wrong; use that filter,"
                " or another name, which begins with the rows of its filter. `store.drop_consumer` gives a name up.",
                name=self._name,
                filter=shown(None if filter is None else str(filter)),
                former=known.partition(" ")[2] or None,
            )
        return "" if filter is None else f"{digest} {str(filter)[:FILTER_CHARACTERS]}"

    def _pass(self, count: int) -> None:
        """Move the position by so many steps, and those after them for which nothing was delivered."""
        positions = dict(self._positions)
        passed = 0
        for step in self._steps:
            if passed >= count and step.batch is not None:
                break
            passed += 1
            if step.position is not None:
                positions[step.bucket] = step.position
        if positions != self._positions and len(positions) == len(self._feed.buckets):
            if self._ack_seconds and self._feed.clock.monotonic() - self._moved < self._ack_seconds:
                self._is_owed = True
            else:
                self._hold(positions)
        self._positions = positions
        for _ in range(passed):
            self._steps.popleft()

    def _hold(self, positions: Mapping[int, int]) -> None:
        self._feed.latest()
        self._feed.consumers.move(self._name, positions, self._filter, is_named=self._is_named)
        self._is_named = True
        self._moved = self._feed.clock.monotonic()
        self._is_owed = False

    def _settle(self, *, at_once: bool) -> None:
        """Move the position to what is acknowledged, if that is due."""
        if self._is_owed and (at_once or self._feed.clock.monotonic() - self._moved >= self._ack_seconds):
            self._hold(self._positions)

    def _move_quietly(self, *, at_once: bool = False) -> None:
        """Move the position over what a filter has left out, now and then; and renew the lease."""
        self._renew()
        now = self._feed.clock.monotonic()
        if self._steps and self._steps[0].batch is None and (at_once or now - self._moved > QUIET_SECONDS):
            self._pass(0)
        self._settle(at_once=True)

    def _renew(self) -> None:
        """Renew the lease, if there is no position yet and half of its time is over."""
        is_leased = len(self._positions) < len(self._feed.buckets)
        if is_leased and self._feed.clock.monotonic() - self._leased > LEASE_SECONDS / 2:
            self._lease(self._read)

    def _lease(self, positions: Mapping[int, int]) -> None:
        self._feed.consumers.lease(self._name, positions)  # its first position takes the place of the lease
        self._leased = self._feed.clock.monotonic()

    def _all(self) -> Generator[pa.RecordBatch | None]:
        try:
            with self._waits:
                yield from self._each_bucket()
        except GeneratorExit:
            raise
        except BaseException as error:
            self._error = error
            if isinstance(error, (StoreError, OSError)):
                self._feed.latest()  # a dropped table or closed store is the cause to report
            if isinstance(error, OffsetOutOfRange):
                how = "Give the name up (`store.drop_consumer`) and subscribe" if self._is_named else "Subscribe"
                raise OffsetOutOfRange(
                    f"The changes that come next under this name have expired. {how} again: it then begins as `start` "
                    "says, by default with all rows.",
                    name=self._name,
                    **error.where,
                ) from error
            raise

    def _each_bucket(self) -> Iterator[pa.RecordBatch | None]:
        if self._is_full:
            yield from self._together(chain.from_iterable(map(self._rows, list(self._read))))
        waiting = list(self._read)
        while waiting:
            any_came = False
            for bucket in list(waiting):
                for step in self._changes(bucket):
                    self._give(step)
                    if step.batch is not None:
                        any_came = True
                        yield step.batch
                if self._until is not None and self._read[bucket] >= self._until[bucket]:
                    waiting.remove(bucket)
            if waiting and not any_came:
                yield None  # the caller waits, or does something else

    def _together(self, steps: Iterator[_Step]) -> Iterator[pa.RecordBatch]:
        """The batches of some steps, each once it is known what comes between it and the next.

        So to acknowledge the last of them is to acknowledge all.
        """
        waiting: list[_Step] = []
        for step in steps:
            if step.batch is not None:
                yield from self._deliver(waiting)
                waiting = [step]
            elif waiting:
                waiting.append(step)
            else:
                self._give(step)
        yield from self._deliver(waiting)

    def _give(self, step: _Step) -> None:
        last = self._steps[-1] if self._steps else None
        if step.batch is None and last is not None and last.batch is None and last.bucket == step.bucket:
            self._steps.pop()
        if step.batch is not None:
            self._ready = step.batch  # first: an interrupt could leave a step that seems to be delivered
        self._steps.append(_Given(None if step.batch is None else ref(step.batch), step.bucket, step.position))

    def _deliver(self, steps: list[_Step]) -> Iterator[pa.RecordBatch]:
        for step in steps:
            self._give(step)
        for step in steps[:1]:
            assert step.batch is not None
            yield step.batch

    def _now(self) -> TableDefinition:
        """The latest definition, with the names of the first."""
        latest, first = self._feed.latest(), self._feed.definition
        if self._shape is not None:
            self._shape.check(latest, first)
        return latest.named_as(first)

    def _rows(self, bucket: int) -> Iterator[_Step]:
        """The current rows of a bucket, as inserts."""
        with self._feed.buckets[bucket].snapshot() as view:
            state, definition = view.state(), self._now()
            known = [name for name in definition.schema.names if name in self._names]
            rows = rows_now(view, definition, known)
            end, timestamp = state.applied_offset, state.last_timestamp
            names = self._schema.names
            inserts = inserts_of(rows, definition, BucketId(bucket), end, timestamp, self._names)
            for batch in inserts if self._shape is None else self._shape.rows(inserts, names):
                if batch.num_rows:
                    yield _Step(batch.select(names), bucket, None)
            self._read[bucket] = end
            yield _Step(None, bucket, end)

    def _changes(self, bucket: int) -> Iterator[_Step]:
        """The changes that there are now, after those that were read."""
        reads, log, start = self._feed.buckets[bucket], self._logs[BucketId(bucket)], self._read[bucket]
        end = reads.committed().applied_offset
        if self._until is not None:
            end = min(end, self._until[bucket])
        definition = self._now()  # read after the end, so that it has the schemas of all changes
        if end <= start:
            return
        names = list(dict.fromkeys([*self._schema.names, "_log_offset"]))
        changes_of = changes_between(
            *(log.batches(start, end), definition, BucketId(bucket), start, end, names),
            whole_updates=True,
            selection=self._shape,
        )
        for changes in changes_of:
            self._read[bucket] = position = Offset(changes.column("_log_offset")[-1].as_py() + 1)
            yield _Step(changes.select(self._schema.names), bucket, position)
        log.rest()
        self._read[bucket] = end
        yield _Step(None, bucket, end)
