"""The sender of one bucket: what this process writes to it while another process owns it.

Theory of operation. A request gets a number for the connection, and a writer and a sequence if it has none: those of a
slot (:mod:`kvstore.sending.slots`), which no other request of the bucket uses until this one is answered. It is sent.
A caller that waits for nothing else receives its answer itself, unless another thread receives; then, or if others wait
when it has its own, the sender's thread does. If the connection ends, that thread becomes the bucket's owner or meets
the new one, and sends what was not answered once more, in the same order. The bucket remembers the last batches of each
writer, so a request that the last owner had applied gets its first answer.

* A request is answered once: with its result, or with an error that says that nothing was written, or with
  NotAcknowledged; or, if its caller has numbered it and may send it again, with Unavailable.
* An increment of plain columns is sent as numbers, which the owner adds. It is decided here if the owner has no row
  for that.
* Any other conditional request is decided here, by what is stored when it is sent, and sent with the stored bytes as
  its condition. If they are others by then, the owner says which, and it is decided again.
* Of a few keys this process does not read the log: what it has seen of them last is as good, as long as something is to
  be written, since the condition is compared. Otherwise it asks the owner.
* What was sent first is sent again first, and nothing new is sent before it.
* An id whose request has no answer is never used again.
* Answers are taken in the turn to receive, by one thread at a time. A caller that Ctrl-C ends leaves its answer to the
  sender's thread, which looks after a quarter of a second. Only that thread closes the connection.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from kvstore.bucket.commit_lock import pause
from kvstore.bucket.conditional import decided
from kvstore.bucket.context import BucketContext
from kvstore.bucket.elsewhere import TAKES_NO_REQUESTS, NotAnswered, ThisBucket, TooLarge
from kvstore.disk.files import refusals
from kvstore.disk.lock import takes_requests
from kvstore.errors import (
    LogFailed,
    NoSuchTable,
    NotAcknowledged,
    OutOfOrderSequence,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreReplaced,
    Unavailable,
)
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Answer, Reply, answer_of, check_caller
from kvstore.process.signals import undisturbed
from kvstore.request.encoded import AddedRequest, ComparedRequest, SmallConditional, SmallRequest, Submitted
from kvstore.request.request import ConditionalRequest, Request
from kvstore.request.results import AppendResult
from kvstore.request.sums import StoredSums
from kvstore.sending import frames, requests
from kvstore.sending.frames import FRAME_BYTES_MAX, BadFrame, Greeting, Kind, frames_in, number_in
from kvstore.sending.meeting import MEET_SECONDS, MeetingPlace, NotMet
from kvstore.sending.requests import Condition
from kvstore.sending.slots import Slot, Slots
from logformat import paths
from logformat.ids import NO_SEQUENCE, NO_WRITER, Offset, Sequence, WriterId, next_sequence
from logformat.rows.few.few_rows import Operation

ANSWER_SECONDS = 30.0
"""How long a request waits for its answer, from whichever process owns the bucket."""
REQUESTS_MAX = 8
"""Requests without a writer of their own that wait for an answer at once; others wait to be sent."""
SEEN_MAX, SEEN_BYTES_MAX = 1024, 1024
"""Of how many keys a sender remembers what was stored, and of how many bytes each."""
CONFLICTS_MAX = 1
"""How often a condition is decided again before the owner is asked to wait for its request."""
TICK_SECONDS = 0.25
"""How long a thread waits at most before it looks again."""
_HINT_SECONDS = 0.5
_RECEIVED_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class Sent:
    """A request that waits for its answer.

    Attributes:
        given: The request of the caller; None for a question whether all before it is applied.
        answer: The answer that is awaited.
        request: What is sent, with a writer and a sequence.
        condition: What has to be stored for it.
        slot: The slot whose id it has, if any.
        began: When it was sent first, in seconds of the clock.
        frame: The frame that was sent.
        is_altered: Whether the owner knows another definition of the table, so that rows are sent as columns.
        transaction: The transaction that is sent instead of a request; it is not sent again.
        conflicts: How often its condition was not met.
        holds: Whether the owner is asked to wait for it.
        asks: Whether the owner is asked what is stored, to decide it.
        found: What the owner has said of that, until it is decided.
        sums: What the owner adds to a row, unless it has answered that it has none for that.
    """

    given: Submitted | None
    answer: Future[Any] | Reply[Any]
    request: Request | SmallRequest | None = None
    condition: Condition | None = None
    slot: Slot | None = None
    began: float = 0.0
    frame: bytes = b""
    is_altered: bool = False
    transaction: bytes | None = None
    conflicts: int = 0
    holds: bool = False
    asks: bool = False
    found: list[bytes] | None = None
    sums: StoredSums | None = None


class _Link:
    """A connection to an owner.

    Attributes:
        is_over: Whether nothing more is received by it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.is_over = False
        self._buffer = bytearray()

    def has_ended(self) -> bool:
        """Whether the owner has ended the connection, as far as it is seen without waiting."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def frames(self) -> Iterator[tuple[Kind, bytes]]:
        """Wait a moment for frames.

        Raises:
            BlockingIOError: Nothing has come.
            OSError, BadFrame: The connection is over.
        """
        data = self.socket.recv(_RECEIVED_BYTES)
        if not data:
            raise BadFrame
        self._buffer += data
        return frames_in(self._buffer)


class Sender:
    """Sends requests of this process to the owner of a bucket; see :class:`kvstore.bucket.elsewhere.OtherOwner`.

    Args:
        place: Where owners are met.
        slots: Of this process.
    """

    takes_requests = True

    def __init__(self, context: BucketContext, place: MeetingPlace, slots: Slots) -> None:
        self._context = context
        self._place = place
        self._slots = slots
        self._clock = context.clock
        self._id = uuid4()
        self._receiving = threading.Lock()
        self._meeting = threading.Lock()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._left = threading.Condition(self._mutex)
        """Notified when answers are left to the sender's thread."""
        # Guarded by the mutex
        self._handle: ThisBucket | None = None
        self._link: _Link | None = None
        self._thread: threading.Thread | None = None
        self._recovers = False
        self._is_closed = False
        self._sent: dict[int, Sent] = {}
        self._next = 0
        self._free: list[Slot] = []
        self._last: dict[WriterId, Sequence] = {}
        """The last sequence of each id that was used here."""
        self._seen: dict[bytes, bytes] = {}
        """What was stored for keys of conditional requests last, as far as this process knows."""

    @property
    def is_met(self) -> bool:
        """Whether the owner takes requests now."""
        return self._link is not None

    def send(self, request: Submitted, *, here: bool = False) -> bool:
        """Have the owner answer a request; see :meth:`kvstore.bucket.elsewhere.OtherOwner.send`."""
        if self._link is None and not self._recovers:
            return False
        sent = Sent(request, request.answer)
        if isinstance(request, SmallConditional):
            sent.sums = request.sums
        return not self._decide(sent) or self._send(sent, here=here)

    def transact(self, content: bytes, answer: Answer[tuple[int, bytes]]) -> bool:
        """Have the owner commit a transaction; see :meth:`kvstore.bucket.elsewhere.OtherOwner.transact`."""
        return self._send(Sent(None, answer, transaction=content))

    def wait(self) -> None:
        """Return once the owner has applied all that it was sent before."""
        answer: Reply[None] = Reply()
        if self._send(Sent(None, answer), here=True):
            answer_of(answer)

    def meet(self, handle: ThisBucket, refused: StoreLocked) -> None:
        """Meet the owner; see :meth:`kvstore.bucket.elsewhere.OtherOwner.meet`."""
        with self._meeting:
            with self._mutex:
                while self._is_lost():
                    self._wait()
                if self._is_closed:
                    raise StoreClosed("The store was closed; open it again.", path=self._context.paths.directory)
                if self._link is not None:
                    return
                self._handle = handle
            connection = self._met(handle, refused)
            if connection is not None:
                link = _Link(connection)
                thread = threading.Thread(target=self._run, args=(link,), name="kvstore-sending", daemon=True)
                with self._mutex:
                    self._link, self._thread = link, thread
                thread.start()

    def close(self) -> None:
        """Send nothing more; what was sent is answered first."""
        with self._mutex:
            self._is_closed = True
            while self._sent:
                self._changed.wait(TICK_SECONDS)
            link, thread = self._link, self._thread
            if link is not None:
                _shut(link.socket)
                self._left.notify()
        if thread is not None:
            thread.join()

    # Meeting

    def _met(self, handle: ThisBucket, refused: StoreLocked) -> socket.socket | None:
        """A connection to the owner; None if there may be none now.

        Raises:
            StoreLocked: The owner takes no requests.
        """
        identity = self._context.paths.identity
        try:
            if not self._owner_takes_requests(handle):
                return None
            connection = self._place.owner_of(identity.table_id, identity.bucket_id, handle.is_owned_elsewhere)
        except NotMet:
            raise StoreLocked(TAKES_NO_REQUESTS, **refused.where) from refused
        if connection is None:
            return None
        try:
            return self._greeted(handle, connection)
        except BaseException:
            connection.close()
            raise

    def _owner_takes_requests(self, handle: ThisBucket) -> bool:
        """Whether the owner does; False if the bucket has no owner any more.

        Raises:
            NotMet: It does not.
        """
        deadline = self._clock.monotonic() + _HINT_SECONDS
        while not takes_requests(self._context.paths.directory / paths.LOCK_FILE):
            if not handle.is_owned_elsewhere():
                return False
            if self._clock.monotonic() >= deadline:
                raise NotMet
            pause()  # it may just have taken the lock, and not have said so yet
        return True

    def _greeted(self, handle: ThisBucket, connection: socket.socket) -> socket.socket | None:
        identity, lock = self._context.paths.identity, handle.lock_identity()
        if lock is None:
            connection.close()
            return None
        _give_up_after(connection, MEET_SECONDS, MEET_SECONDS)
        try:
            connection.sendall(
                Greeting(
                    *(frames.VERSION, self._id, identity.store_id, identity.table_id, identity.bucket_id, lock)
                ).encode()
            )
            kind, content = _first_frame(connection)
        except (OSError, BadFrame) as error:
            connection.close()
            if _is_of_program(error):
                raise
            return None
        if kind is Kind.REFUSED:
            raise frames.decode_error(content)
        if kind is not Kind.WELCOME:
            connection.close()
            return None
        _give_up_after(connection, TICK_SECONDS, ANSWER_SECONDS)
        return connection

    # Sending

    def _decide(self, sent: Sent) -> bool:
        """Make what is sent of the request that is given; False if that is answered now."""
        given = sent.given
        request: Request | SmallRequest | None
        sent.condition = None
        if sent.sums is not None and isinstance(given, SmallConditional):
            request = SmallRequest([], given.writes)  # for the numbers of its writer
        elif isinstance(given, ComparedRequest):
            request, sent.condition = given.then, Condition(given.keys, given.stored)
        elif isinstance(given, ConditionalRequest):
            try:
                request, stored = self._decided(sent, given, self._context.catalog.definition())
            except StoreError as error:
                sent.answer.set_exception(error)
                return False
            sent.condition = Condition(given.keys, stored)
            if sent.asks:
                sent.request = None
                return True
        else:
            assert given is not None
            assert not isinstance(given, AddedRequest)
            request = given
        if request is None:
            sent.answer.set_result(None)
            return False
        sent.request = request.request() if isinstance(request, SmallRequest) and sent.is_altered else request
        return True

    def _decided(
        self, sent: Sent, given: ConditionalRequest, definition: TableDefinition
    ) -> tuple[Request | SmallRequest | None, list[bytes]]:
        """What a conditional request writes, and the stored values by which that was decided; or ``asks`` is set."""
        stored, sent.found = sent.found, None
        was_asked, sent.asks = sent.asks, False
        if stored is None and not was_asked and isinstance(given, SmallConditional) and self._link is not None:
            seen = [self._seen.get(key) for key in given.keys]
            guess = [value for value in seen if value is not None]
            if len(guess) == len(seen):
                with suppress(StoreError):
                    if (request := decided(given, definition, lambda _: guess)) is not None:
                        return request, guess
            sent.asks = True
            return None, []
        if stored is not None and len(stored) == len(given.keys):
            return decided(given, definition, lambda _: stored), stored
        read: list[bytes] = []
        may_ask = not was_asked and self._link is not None
        request = None
        try:
            request = decided(given, definition, partial(self._read, read))
        except StoreError:
            if not may_ask:
                raise
        sent.asks = request is None and may_ask  # what the owner has acknowledged may not be on disk yet
        return request, read

    def _see(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Remember what is stored."""
        with self._mutex:
            for key, value in zip(keys, values, strict=True):
                self._seen.pop(key, None)
                if len(value) <= SEEN_BYTES_MAX:
                    self._seen[key] = value
            while len(self._seen) > SEEN_MAX:
                del self._seen[next(iter(self._seen))]

    def _read(self, stored: list[bytes], keys: list[bytes]) -> list[bytes]:
        """Read the rows of encoded keys; they are also put into ``stored``."""
        assert self._handle is not None
        with refusals(self._context.paths.directory), self._handle.latest() as view:
            stored[:] = view.get(keys)
        return stored

    def _send(self, sent: Sent, *, here: bool = False) -> bool:
        """Send a request once its turn comes; False if the owner is not met.

        Args:
            here: Whether its caller waits for the answer, and for nothing else.
        """
        needs_slot = sent.asks or (sent.request is not None and sent.request.writer_id == NO_WRITER)
        with self._mutex:
            while self._is_lost() or (needs_slot and self._are_slots_used()):
                self._wait()
            link = self._link
            if link is None or self._is_closed:
                return False
            sent.began = self._clock.monotonic()
            number = self._next
            self._prepare(number, sent)
            self._next += 1
            try:
                self._sent[number] = sent
                self._put(sent)
            except BaseException:  # Ctrl-C: a part of it may be sent, or nothing
                _shut(link.socket)
                raise
            if not here:
                self._left.notify()
        if here:
            self._receive_here(link, sent)
        return True

    def _is_lost(self) -> bool:
        """Whether the connection has ended, and the sender's thread makes up for it."""
        return self._recovers or (self._link is not None and self._link.is_over)

    def _are_slots_used(self) -> bool:
        if len(self._sent) < REQUESTS_MAX:
            return False
        return sum([sent.slot is not None or sent.asks for sent in self._sent.values()]) >= REQUESTS_MAX

    def _prepare(self, number: int, sent: Sent) -> None:
        """Make the frame of a request, which gets a writer and a sequence if it has none; the lock is held.

        Raises:
            TooLarge: It can't be sent.
            StoreFull, LogFailed: There is no slot, and the disk refuses to make one.
        """
        if sent.transaction is not None:
            sent.frame = frames.numbered(Kind.TRANSACT, number, sent.transaction)
            if len(sent.frame) > FRAME_BYTES_MAX:
                raise TooLarge
            return
        if sent.request is None:
            keys = sent.given.keys if isinstance(sent.given, ConditionalRequest) else []
            sent.frame = frames.numbered(Kind.BARRIER, number, requests.encode_values(keys))
            return
        request = sent.request
        if request.writer_id == NO_WRITER:
            slot = self._slot(sent)
            sequence = next_sequence(self._last[slot.writer_id])
            if isinstance(request, SmallRequest):  # what replace() does, in less time
                numbers = slot.writer_id, sequence, request.writer_epoch
                request = SmallRequest(request.operations, request.writes, request.answer, *numbers)
            else:
                request = replace(request, writer_id=slot.writer_id, sequence=sequence)
        if isinstance(request, SmallRequest) and sent.sums is not None:
            sent.frame = frames.numbered(Kind.ADD, number, requests.encode_add(request, sent.sums))
        elif isinstance(request, SmallRequest):
            sent.frame = frames.numbered(Kind.WRITE_FEW, number, requests.encode_few(request, sent.condition))
        else:
            content = requests.encode(request, self._context.catalog.definition(), sent.condition)
            sent.frame = frames.numbered(Kind.WRITE, number, content)
        if len(sent.frame) > FRAME_BYTES_MAX:
            self._free_slot(sent)
            raise TooLarge
        sent.request = request

    def _slot(self, sent: Sent) -> Slot:
        """The slot of a request, or one that it gets now."""
        if sent.slot is not None and not sent.slot.is_spoiled:
            return sent.slot
        slot = self._free.pop() if self._free else self._slots.other_than(set(self._last))
        if slot.writer_id not in self._last:
            assert self._handle is not None
            last = None if slot.is_new else self._handle.last_sequence(slot.writer_id)
            self._last[slot.writer_id] = NO_SEQUENCE if last is None else last
        slot.waiting.add(sent)
        sent.slot = slot
        return slot

    def _free_slot(self, sent: Sent) -> None:
        if sent.slot is not None:
            sent.slot.waiting.discard(sent)
            if not sent.slot.is_spoiled:
                self._free.append(sent.slot)
        sent.slot = None

    def _put(self, sent: Sent) -> None:
        assert self._link is not None
        connection = self._link.socket
        try:
            connection.sendall(sent.frame)
        except OSError as error:  # the thread sees the end of the connection, and sends it again
            _shut(connection)
            if _is_of_program(error):
                raise

    # Answers

    def _receive_here(self, link: _Link, sent: Sent) -> None:
        """Take answers until that of a request of this thread is there; another thread goes on if it has to."""
        while not (sent.answer.done() or link.is_over):
            if not undisturbed(self._receive_if_free, link):
                break
        if self._sent or link.is_over:  # only now: what is sent meanwhile counts on the thread that receives
            with self._mutex:
                self._left.notify()

    def _run(self, first: _Link) -> None:
        link: _Link | None = first
        try:
            while link is not None:
                while not link.is_over:
                    self._receive_rest(link)
                with self._receiving, self._mutex:
                    self._link, self._recovers = None, True
                link.socket.close()
                self._lose_transactions()
                connection = self._recovered()
                link = None if connection is None else _Link(connection)
                with self._mutex:
                    self._link, self._recovers = link, False
                    for sent in self._sent.values():
                        self._put(sent)
                    self._changed.notify_all()
        finally:
            # However the thread ended, no caller may wait for ever for it.
            with self._mutex:
                self._link, self._recovers = None, False
            for number in list(self._sent):
                self._give_up(number)

    def _receive_rest(self, link: _Link) -> None:
        """Take answers that no caller receives; see after a while whether the connection has ended."""
        with self._mutex:
            if not self._sent or self._receiving.locked():
                self._left.wait(TICK_SECONDS)
        if not self._receiving.locked():
            with self._receiving:
                if self._sent or link.has_ended():
                    self._receive(link)

    def _receive_if_free(self, link: _Link) -> bool:
        """Take answers that come within a moment; False if another thread has the turn to receive.

        The turn ends with it: a handler of a signal that writes would wait for ever for what it has interrupted.
        """
        if not self._receiving.acquire(blocking=False):
            return False
        try:
            return self._receive(link)
        finally:
            self._receiving.release()

    def _receive(self, link: _Link) -> bool:
        """Take answers that come within a moment, in the turn to receive; True."""
        goes_on = False
        try:
            for kind, content in () if link.is_over else link.frames():
                if kind is Kind.NOT_OWNER:
                    return True
                self._take(kind, content)
            goes_on = not link.is_over
        except BlockingIOError:
            goes_on = not self._is_late()
        except (OSError, BadFrame):
            pass
        finally:
            link.is_over = not goes_on
        return True

    def _take(self, kind: Kind, content: bytes) -> None:
        number, rest = number_in(content)
        if (sent := self._sent.get(number)) is None:
            raise BadFrame
        if sent.transaction is not None and kind in (Kind.TRANSACTED, Kind.CHANGED, Kind.ALTERED):
            self._settle(number, partial(sent.answer.set_result, (kind, rest)))
        elif kind is Kind.WRITTEN:
            self._written(number, sent, *frames.result_in(content))
        elif kind is Kind.UNCHANGED:
            self._unchanged(number, sent, requests.decode_values(rest))
        elif kind is Kind.ALTERED and sent.sums is None:
            sent.is_altered = True
            is_decided = isinstance(sent.request, SmallRequest)
            if isinstance(sent.request, SmallRequest):  # it may have been applied, while its answer was lost
                sent.request = sent.request.request()
            self._again(number, sent, is_decided=is_decided)
        elif kind is Kind.FAILED:
            self._failed(number, sent, frames.decode_error(rest))
        else:
            raise BadFrame

    def _written(self, number: int, sent: Sent, result: AppendResult, row: bytes = b"") -> None:
        """Answer a request that was written.

        Args:
            row: The row that was stored, if the owner has added numbers to it and says so.
        """
        if sent.slot is not None:
            assert sent.request is not None
            self._last[sent.slot.writer_id] = sent.request.sequence
        if sent.sums is not None:
            try:
                with refusals(self._context.paths.directory):
                    stored = self._added(sent.sums, result, row)
                sent.sums.keep(stored)
            except StoreError as error:
                lost = NotAcknowledged(
                    "The numbers were added, but their answer was lost, and the log does not give the row; read it.",
                    committed=True,
                    path=self._context.paths.directory,
                    reason=str(error),
                )
                self._settle(number, partial(sent.answer.set_exception, lost))
                return
            self._see([stored.code], [stored.value or b""])
        elif isinstance(sent.given, SmallConditional) and isinstance(sent.request, SmallRequest):
            done = sent.request.operations
            self._see([each.code for each in done], [each.value or b"" for each in done])
        self._settle(number, partial(sent.answer.set_result, result))

    def _added(self, sums: StoredSums, result: AppendResult, row: bytes) -> Operation:
        """What stored the row of sums; of a duplicate, of which the owner knows only offsets, the log has it.

        Raises:
            StoreError, OSError: It can't be read.
        """
        if row:
            return sums.key._replace(value=row)
        assert self._handle is not None
        (found,) = self._handle.log.batches(result.first_offset, Offset(result.last_offset + 1))
        return sums.logged(found.header, found.data)

    def _unchanged(self, number: int, sent: Sent, values: list[bytes]) -> None:
        """The condition of a request was not met.

        Args:
            values: What is stored; empty if the owner does not say.
        """
        if isinstance(sent.given, ConditionalRequest) and len(values) == len(sent.given.keys):
            sent.found = values
            self._see(sent.given.keys, values)
        if not isinstance(sent.given, ConditionalRequest):
            self._settle(number, partial(sent.answer.set_result, None))
        elif self._clock.monotonic() - sent.began >= ANSWER_SECONDS:
            error = StoreLocked("Other processes change the rows of this write all the time; try it again.")
            self._settle(number, partial(sent.answer.set_exception, error))
        elif sent.conflicts >= CONFLICTS_MAX and not sent.asks:
            self._hold(number, sent, sent.given.keys)
        elif sent.sums is not None:
            self._again(number, sent, adds=False)
        else:
            sent.conflicts += not sent.asks
            self._again(number, sent)

    def _hold(self, number: int, sent: Sent, keys: list[bytes]) -> None:
        """Have the bucket wait until the request was decided once more, and sent."""
        with self._mutex:
            sent.holds = True
            sent.asks, sent.found = True, None
            sent.frame = frames.numbered(Kind.HOLD, number, requests.encode_values(keys))
            if self._link is not None:
                self._put(sent)

    def _failed(self, number: int, sent: Sent, error: StoreError) -> None:
        if sent.slot is not None and isinstance(error, OutOfOrderSequence):
            # The bucket has forgotten the writer. Nothing was written, so the request gets another id.
            sent.slot.is_spoiled = True
            self._again(number, sent)
            return
        if sent.slot is not None and isinstance(error, (LogFailed, StoreReplaced)):
            sent.slot.is_spoiled = True  # it may be in the log
        self._settle(number, partial(sent.answer.set_exception, error))

    def _again(self, number: int, sent: Sent, *, is_decided: bool = False, adds: bool = True) -> None:
        """Send a request once more, if there is a connection.

        Args:
            is_decided: Whether it stays as it is; else nothing of it was written, and it is decided once more.
            adds: Whether the owner may add its sums; else it is decided here, like a question that was answered.
        """
        before, is_prepared = replace(sent), False
        was_held, sent.holds = sent.holds, False
        if not adds:
            sent.sums, sent.asks = None, True
        try:
            if not is_decided and not self._decide(sent):
                if was_held:
                    with self._mutex:
                        sent.frame = frames.numbered(Kind.GIVE_UP, number)
                        if self._link is not None:
                            self._put(sent)
                self._settle(number, None)
                return
            with self._mutex:
                self._prepare(number, sent)
                is_prepared = True
                if self._link is not None:
                    self._put(sent)
        except StoreError as error:
            self._settle(number, partial(sent.answer.set_exception, error))
        except TooLarge:
            refused = StoreLocked("The rows of this write have changed, and are too many now; write fewer at once.")
            self._settle(number, partial(sent.answer.set_exception, refused))
        except BaseException:
            if not is_prepared:  # what was sent is sent again
                sent.request, sent.condition, sent.sums = before.request, before.condition, before.sums
                sent.frame, sent.asks, sent.holds = before.frame, before.asks, before.holds
            raise

    def _settle(self, number: int, answer: Callable[[], None] | None) -> None:
        with self._mutex:
            self._free_slot(self._sent.pop(number))
            self._changed.notify_all()
        if answer is not None:
            answer()

    def _lose_transactions(self) -> None:
        """Answer transactions that have no answer: their callers find out whether they were committed."""
        with self._mutex:
            lost = [number for number, sent in self._sent.items() if sent.transaction is not None]
        for number in lost:
            self._settle(number, partial(self._sent[number].answer.set_exception, NotAnswered()))

    def _is_late(self) -> bool:
        """Give up requests that have waited for too long; whether there are any."""
        now = self._clock.monotonic()
        with self._mutex:
            late = [number for number, sent in self._sent.items() if now - sent.began >= ANSWER_SECONDS]
        for number in late:
            self._give_up(number)
        return bool(late)

    def _give_up(self, number: int, reason: StoreError | None = None) -> None:
        sent = self._sent[number]
        where = {"path": self._context.paths.directory} | ({} if reason is None else {"reason": str(reason)})
        error: StoreError
        if sent.slot is not None:
            sent.slot.is_spoiled = True
        if isinstance(reason, NoSuchTable) and sent.transaction is None:
            error = copy(reason)  # whatever was written went with the table
        elif sent.transaction is None and (sent.asks or sent.request is None):
            error = Unavailable(
                "The process that owns the bucket has not answered, and nothing was written; try again.", **where
            )
        elif sent.slot is not None or sent.transaction is not None:
            error = NotAcknowledged(
                "These rows were sent to the process that owns the bucket, and it has not answered; they may be"
                " written. Read the table before you send them again.",
                **where,
            )
        else:
            error = Unavailable(
                "The process that owns the bucket has not answered; send the batch again under the same sequence.",
                **where,
            )
        self._settle(number, partial(sent.answer.set_exception, error))

    # After the end of a connection

    def _recovered(self) -> socket.socket | None:
        """Have what was not answered answered: by this process, if it owns the bucket now; else return a connection."""
        handle = self._handle
        assert handle is not None
        refused = StoreLocked("Another process owns the bucket.", path=self._context.paths.directory)
        try:
            while self._sent:
                if self._is_late():
                    continue
                if handle.try_own():
                    self._answer_here(handle)
                    continue
                try:
                    if (connection := self._met(handle, refused)) is not None:
                        return connection
                except StoreLocked:
                    self._pause()
        except StoreError as error:
            for number in list(self._sent):
                self._give_up(number, error)
        return None

    def _answer_here(self, handle: ThisBucket) -> None:
        """Submit what was not answered to the own engine, in order, and wait for the answers."""
        waiting: list[tuple[int, Sent, Future[AppendResult | None], list[Operation]]] = []
        for number, sent in self._sent.items():
            answer: Future[Any] = Answer()
            added: list[Operation] = []
            if sent.request is None:
                answer.set_result(None)
            else:
                request: Submitted = replace(sent.request, answer=answer)
                if sent.sums is not None and isinstance(sent.request, SmallRequest):
                    request = AddedRequest(sent.sums, replace(sent.request, answer=Reply()), answer, stored=added)
                elif sent.condition is not None:
                    request = ComparedRequest(*sent.condition, replace(sent.request, answer=Answer()), answer)
                if not handle.take_in(request):
                    break  # it was given up meanwhile; the rest is sent to its next owner
            waiting.append((number, sent, answer, added))
        for number, sent, answer, added in waiting:
            try:
                result = answer_of(answer)
            except StoreError as error:
                self._failed(number, sent, error)
                continue
            if result is None:
                self._unchanged(number, sent, [])
            else:
                self._written(number, sent, result, (added[0].value or b"") if added else b"")

    def _pause(self) -> None:
        with self._mutex:
            self._changed.wait(TICK_SECONDS)

    def _wait(self) -> None:
        self._changed.wait(TICK_SECONDS)
        check_caller()


def _give_up_after(connection: socket.socket, receiving: float, sending: float) -> None:
    """Have the system end waits for the other side after so many seconds, by BlockingIOError."""
    for option, seconds in ((socket.SO_RCVTIMEO, receiving), (socket.SO_SNDTIMEO, sending)):
        timeout = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, option, timeout)


def _is_of_program(error: Exception) -> bool:
    """Whether the program's own handler of a signal raised it during the call: the system's errors have a number.

    Such a handler raises TimeoutError, which is an OSError.
    """
    return isinstance(error, OSError) and error.errno is None


def _first_frame(connection: socket.socket) -> tuple[Kind, bytes]:
    buffer = bytearray()
    while True:
        data = connection.recv(_RECEIVED_BYTES)
        if not data:
            raise BadFrame
        buffer += data
        for kind, content in frames_in(buffer):
            return kind, content


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
