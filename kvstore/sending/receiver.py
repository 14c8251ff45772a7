"""The receiver: takes requests of other processes for the buckets that this process owns.

Theory of operation. The thread that looks for processes which commit also looks for senders that wait, and connects to
them. From the first one on a thread of the receiver reads what they send. It only puts requests into the queue of the
bucket's committer, so one group commit and one sync serve all senders and the callers of this process; whoever answers
a request sends the answer, without waiting.

* Nothing that a sender sends harms more than its own connection. Requests are checked as those of callers here.
* A sender's requests that wait are limited in number and in bytes; beyond that nothing more is read from it.
* A sender that does not read its answers loses the connection.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias
from uuid import UUID, uuid4

from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.turn import Hold
from kvstore.errors import InvalidRequest, NoSuchTable, NotAStore, StoreError, StoreReplaced, UnsupportedVersion
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.process.calls import Call, CallerInterrupted, Reply
from kvstore.request.encoded import AddedRequest, ComparedRequest, SmallRequest
from kvstore.request.preparation import request_of
from kvstore.request.request import Request
from kvstore.request.results import AppendResult
from kvstore.sending import frames, requests
from kvstore.sending.frames import BadFrame, Greeting, Kind, frames_in, number_in
from kvstore.sending.meeting import Bucket, MeetingPlace
from kvstore.sending.requests import Altered
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.few.few_rows import Operation

Transact: TypeAlias = Callable[[bytes], tuple[Kind, bytes]]
Begin: TypeAlias = Callable[[bytes, Callable[[Kind | None, bytes], None]], None]

WAITING_MAX = 64
"""Requests of one sender that wait for their answer."""
WAITING_BYTES_MAX = 16 << 20
"""Bytes of these."""
_RECEIVED_BYTES = 1 << 18
_WAKES = 4096


@dataclass(frozen=True, slots=True)
class Owned:
    """A bucket whose requests are taken.

    Attributes:
        catalog: Its table.
    """

    handle: BucketHandle
    catalog: TableCatalog


class Receiver:
    """Takes requests of other processes.

    Args:
        place: Where senders wait.
        transact: Commits a transaction, and returns the kind and the content of its answer; BadFrame if it is none.
    """

    def __init__(self, place: MeetingPlace, transact: Transact) -> None:
        self._place = place
        self._transact = transact
        self._transactions: dict[threading.Thread, Call[None]] = {}
        self._owner = uuid4()
        self._mutex = threading.Lock()
        self._new: list[_Connection] = []
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None

    def look(self, owned: Callable[[], Iterable[Owned]]) -> None:
        """Connect to the senders that wait for a bucket.

        Args:
            owned: Returns the buckets that this process owns.

        Raises:
            OSError: The directory can't be read, or too many files are open.
        """
        waiting = self._place.waiting()
        if not waiting:
            return
        known: dict[Bucket, Owned] = {}
        for each in owned():
            identity = each.handle.identity
            known[identity.table_id, identity.bucket_id] = each
        for name, bucket in waiting:
            if bucket in known and (connection := self._place.connected(name)) is not None:
                connection.setblocking(False)
                self._add(_Connection(connection, known[bucket], self._owner, self._woken, self._begin))

    def close(self) -> None:
        """End all connections; buckets are not owned any more, so nothing waits for an answer."""
        with self._mutex:
            self._is_closing = True
            thread = self._thread
        if thread is not None:
            self._woken()
            thread.join()
        transactions = list(self._transactions.items())
        for _, call in transactions:
            call.interrupted = True  # its sender looks for another owner; what is decided is completed
        for each, _ in transactions:
            each.join()

    def _begin(self, content: bytes, answered: Callable[[Kind | None, bytes], None]) -> None:
        """Commit a transaction in a thread of its own: it may wait for other processes."""

        def work() -> None:
            kind, data = None, b""
            try:
                kind, data = self._transact(content)
            except BadFrame:
                pass
            finally:
                answered(kind, data)

        def run() -> None:
            call.run()
            del self._transactions[thread]
            with suppress(CallerInterrupted):
                call.answer()

        call = Call(work)
        thread = threading.Thread(target=run, name="kvstore-transaction", daemon=True)
        self._transactions[thread] = call
        thread.start()

    def _add(self, connection: _Connection) -> None:
        with self._mutex:
            self._new.append(connection)
            if self._thread is None:
                self._wake, woken = socket.socketpair()
                self._wake.setblocking(False)
                self._thread = threading.Thread(target=self._run, args=(woken,), name="kvstore-receiving", daemon=True)
                self._thread.start()
        self._woken()

    def _woken(self) -> None:
        if self._wake is not None:
            with suppress(OSError):  # it is full: the thread wakes anyway
                self._wake.send(b"\0")

    def _run(self, woken: socket.socket) -> None:
        woken.setblocking(False)
        connections: dict[int, _Connection] = {}
        try:
            with woken:
                poller = select.poll()
                poller.register(woken, select.POLLIN)
                while not self._is_closing:
                    self._turn(poller, woken, connections)
        finally:
            # However the thread ended, no sender may wait for it, and the next one begins another.
            with self._mutex:
                ended = [*connections.values(), *self._new]
                self._new.clear()
                assert self._wake is not None
                self._wake.close()
                self._thread = None
            for each in ended:
                each.close()

    def _turn(self, poller: select.poll, woken: socket.socket, connections: dict[int, _Connection]) -> None:
        events = poller.poll()
        ready = [connections[descriptor] for descriptor, _ in events if descriptor in connections]
        if len(ready) < len(events):
            woken.recv(_WAKES)
            with self._mutex:
                new, self._new = self._new, []
            for each in new:
                connections[each.descriptor] = each
                poller.register(each.descriptor, select.POLLIN)
            ready += [each for each in connections.values() if each.is_paused and each.may_go_on()]
        was_paused_before = [each.is_paused for each in ready]
        for each in ready:
            each.read()
        # What follows hardly ever gives the interpreter's lock away, so the committer has them all when it wakes.
        for each, was_paused in zip(ready, was_paused_before, strict=True):
            was_greeted = each.greeting is not None
            each.take(here=len(ready) == 1)
            if each.greeting is not None and not was_greeted:
                _replace(connections.values(), each)
            if each.is_paused and not was_paused:
                poller.unregister(each.descriptor)  # without events, too, its end would be reported again and again
            elif was_paused and not each.is_paused:
                poller.register(each.descriptor, select.POLLIN)
        for each in [each for each in connections.values() if each.is_over]:
            del connections[each.descriptor]
            if not each.is_paused:
                poller.unregister(each.descriptor)
            each.close()


def _replace(connections: Iterable[_Connection], newest: _Connection) -> None:
    """End earlier connections of a sender, whatever of them was not read: the sender has sent it once more."""
    assert newest.greeting is not None
    for each in connections:
        if each is not newest and each.greeting is not None and each.greeting.sender == newest.greeting.sender:
            each.is_over = True


class _Connection:
    """A connection of a sender. Its answers are sent by any thread, all else is done by the receiver's.

    Attributes:
        greeting: What the sender said first.
        is_over: Whether it is to be closed.
        is_paused: Whether nothing is read before more requests have been answered.
    """

    def __init__(
        self, connection: socket.socket, owned: Owned, owner: UUID, wake: Callable[[], None], begin: Begin
    ) -> None:
        self.socket = connection
        self.descriptor = connection.fileno()
        self.greeting: Greeting | None = None
        self.is_over = self.is_paused = False
        self._owned = owned
        self._owner = owner
        self._wake = wake
        self._begin = begin
        self._buffer = bytearray()
        self._mutex = threading.Lock()
        self._waiting = self._waiting_bytes = 0
        self._hold: tuple[int, Hold] | None = None

    def may_go_on(self) -> bool:
        """Whether few enough requests wait."""
        return self._waiting < WAITING_MAX and self._waiting_bytes < WAITING_BYTES_MAX

    def read(self) -> None:
        """Read what has come, unless enough waits."""
        if self.is_over or self.is_paused:
            return
        try:
            data = self.socket.recv(_RECEIVED_BYTES)
            self.is_over = not data
            self._buffer += data
        except BlockingIOError:
            return
        except OSError:
            self.is_over = True

    def take(self, *, here: bool) -> None:
        """Take what was read.

        Args:
            here: Whether a request may be answered in this thread, because no other sender waits for it.
        """
        if self.is_over:
            return
        try:
            self.is_paused = False
            arrived = frames_in(self._buffer)
            while self.may_go_on():
                if (frame := next(arrived, None)) is None:
                    return
                self._take(*frame, here=here)
                if self.is_over:
                    return
            self.is_paused = True
            if self.may_go_on():  # an answer came in between, and woke nobody
                self._wake()
        except (OSError, BadFrame):
            self.is_over = True

    def _take(self, kind: Kind, content: bytes, *, here: bool) -> None:
        if self.greeting is None:
            if kind is not Kind.GREETING:
                raise BadFrame
            self._greet(Greeting.decode(content))
            return
        number, content = number_in(content)
        answer = _Answer(self, number, len(content))
        try:
            if kind is Kind.WRITE_FEW:
                few = requests.decode_few(content, self._owned.catalog.definition(), answer)
                self._submit(answer, few, here=here)
            elif kind is Kind.ADD:
                self._submit(answer, self._add(content, answer), here=here)
            elif kind is Kind.HOLD:
                self._give_up_hold()
                answer.size = 0
                self._hold = number, Hold(requests.keys_in(content), answer)
                self._submit(answer, self._hold[1])
            elif kind is Kind.GIVE_UP:
                self._give_up_hold()
            elif kind is Kind.WRITE:
                self._write(answer, content)
            elif kind is Kind.TRANSACT:
                self._add_waiting(len(content))
                self._begin(content, partial(self._transacted, number, len(content)))
            elif kind is not Kind.BARRIER:
                raise BadFrame
            else:
                asked = _never(_nothing(self._owned.catalog.definition()), answer, requests.keys_in(content))
                self._submit(answer, asked)
        except Altered:
            self._send(frames.numbered(Kind.ALTERED, number))
        except NoSuchTable as error:
            self._send(frames.numbered(Kind.FAILED, number, frames.encode_error(error)))

    def _greet(self, greeting: Greeting) -> None:
        bucket_paths = self._owned.handle.paths
        identity = bucket_paths.identity
        lock = self._owned.handle.lock_identity()
        refused: StoreError | None = None
        if greeting.version != frames.VERSION:
            refused = UnsupportedVersion(
                "The process that owns this bucket has another version of kvstore, to which this one can't send its"
                " writes; end one of them, or use one version.",
                version=greeting.version,
                owner_version=frames.VERSION,
            )
        elif greeting.store_id != identity.store_id:
            refused = NotAStore(
                "The process that owns this bucket has another store open.", path=bucket_paths.directory
            )
        elif (greeting.table, greeting.bucket) != (identity.table_id, identity.bucket_id) or lock is None:
            raise BadFrame
        elif greeting.lock != lock:
            refused = StoreReplaced(
                "The directory of the store was replaced; open the store again.", path=bucket_paths.directory
            )
        self.greeting = greeting
        if refused is None:
            self._send(frames.welcome(self._owner))
        else:
            self._send(frames.frame(Kind.REFUSED, frames.encode_error(refused)))
            self.is_over = True

    def _write(self, answer: _Answer, content: bytes) -> None:
        request: Request | ComparedRequest
        try:
            request = requests.decode(content, self._owned.catalog.definition(), answer)
        except InvalidRequest as error:
            request, answer.refused = self._only_if_applied(content, answer), error
        self._submit(answer, request)

    def _add(self, content: bytes, answer: _Answer) -> AddedRequest | ComparedRequest:
        try:
            request = requests.decode_add(content, self._owned.catalog.definition(), answer)
        except Altered:
            return self._only_if_applied(content, answer)
        answer.added = request.stored
        return request

    def _only_if_applied(self, content: bytes, answer: _Answer) -> ComparedRequest:
        """A request that does nothing: the owner before may have applied it, when the table was another one."""
        writer_id, sequence = requests.numbers_in(content)
        again = replace(_nothing(self._owned.catalog.definition()), writer_id=writer_id, sequence=sequence)
        return _never(again, answer)

    def _submit(
        self,
        answer: _Answer,
        request: Request | SmallRequest | ComparedRequest | AddedRequest | Hold,
        *,
        here: bool = False,
    ) -> None:
        self._add_waiting(answer.size)
        if isinstance(request, (ComparedRequest, AddedRequest, Hold)):
            answer.stored = request.found
        try:
            if self._hold is not None and self._is_next(answer.number, request):
                return
            if not self._owned.handle.take_in(request, here=here):
                self._send(frames.numbered(Kind.NOT_OWNER, answer.number))
                self.is_over = True
        except StoreError as error:
            answer.set_exception(error)

    def _is_next(self, number: int, request: Request | SmallRequest | ComparedRequest | AddedRequest | Hold) -> bool:
        """Whether the bucket waits for a request, which it has then."""
        assert self._hold is not None
        if isinstance(request, Hold) or self._hold[0] != number:
            return False
        (_, hold), self._hold = self._hold, None
        is_waited_for = hold.answer.done()
        return hold.go_on(request if is_waited_for else None) and is_waited_for

    def _give_up_hold(self) -> None:
        if self._hold is not None:
            self._hold[1].go_on(None)
            self._hold = None

    def _transacted(self, number: int, size: int, kind: Kind | None, content: bytes) -> None:
        if kind is None:
            _shut(self.socket)
        else:
            self.send_answer(frames.numbered(kind, number, content), size)

    def _add_waiting(self, size: int) -> None:
        with self._mutex:
            self._waiting += 1
            self._waiting_bytes += size

    def send_answer(self, data: bytes, size: int) -> None:
        """Send an answer, without waiting, to a request of a size."""
        with self._mutex:
            self._put(data)
            self._waiting -= 1
            self._waiting_bytes -= size
        if self.is_paused:
            self._wake()

    def _send(self, data: bytes) -> None:
        with self._mutex:
            self._put(data)

    def _put(self, data: bytes) -> None:
        try:
            is_sent = self.socket.send(data) == len(data)
        except OSError:  # also if it does not read its answers
            is_sent = False
        if not is_sent:
            _shut(self.socket)

    def close(self) -> None:
        """Close it; what is answered later is not sent."""
        self._give_up_hold()
        with self._mutex:
            self.socket.close()


class _Answer(Reply[Any]):
    """The answer of a request, which is sent when it is given.

    Attributes:
        number: Number of the request for the connection.
        size: Its size in bytes.
        refused: Why the request is refused, if it was not applied before.
        stored: What is stored, if the answer is that it is something else.
        added: What stored the row to which numbers were added.
    """

    __slots__ = ("_connection", "added", "number", "refused", "size", "stored")

    def __init__(self, connection: _Connection, number: int, size: int) -> None:
        super().__init__()
        self._connection, self.number, self.size = connection, number, size
        self.refused: StoreError | None = None
        self.stored: Sequence[bytes] = ()
        self.added: Sequence[Operation] = ()

    def set_result(self, result: AppendResult | None) -> None:
        """Send it."""
        super().set_result(result)
        if result is not None:
            data = frames.written(self.number, result, *(each.value or b"" for each in self.added))
        elif self.refused is not None:
            data = frames.numbered(Kind.FAILED, self.number, frames.encode_error(self.refused))
        else:
            data = frames.numbered(Kind.UNCHANGED, self.number, requests.encode_values(self.stored))
        self._connection.send_answer(data, self.size)

    def set_exception(self, error: BaseException) -> None:
        """Send the reason why there is none."""
        super().set_exception(error)
        if isinstance(error, StoreError):
            data = frames.numbered(Kind.FAILED, self.number, frames.encode_error(error))
        else:
            data = frames.numbered(Kind.NOT_OWNER, self.number)
        self._connection.send_answer(data, self.size)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the thread sees the end
        connection.shutdown(socket.SHUT_RDWR)


@lru_cache(maxsize=64)
def _nothing(definition: TableDefinition) -> Request:
    """A request without rows, which is not to be changed."""
    return request_of(Changes.upserts(intake.empty(definition.schema)), definition)


def _never(request: Request, answer: Reply[Any], keys: Sequence[bytes] = ()) -> ComparedRequest:
    """A request that gets its first answer if it was applied before, and does nothing else but to find some keys."""
    return ComparedRequest([*keys], [b""] * (not keys), request, answer)
