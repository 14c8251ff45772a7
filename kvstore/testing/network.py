"""A network that loses, delays, doubles and reorders what writers and buckets send each other.

It has no clock and makes no choice: the caller says what happens to which request, so Hypothesis can shorten a failure.
For writers with threads of their own, :meth:`Network.carried` does so by chance in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from kvstore.errors import StoreError
from kvstore.testing.model import Model, Operation, Refused
from logformat.rows.changes import Changes
from writer.target import AppendTarget

MOVES = {
    "flow": "requests arrive in order, and so do their answers",
    "carry": "one request arrives, and its answer",
    "deliver": "one request arrives",
    "group": "requests arrive together",
    "answer": "one answer arrives",
    "unheard": "one request arrives, its answer is lost",
    "lose": "one request is lost",
    "forget": "one answer is lost",
    "double": "one request arrives once more later",
}
"""What can happen in a network."""
_WEIGHED = (
    *("flow", "flow", "flow", "carry", "carry", "deliver", "group", "answer", "answer"),
    *("unheard", "unheard", "lose", "forget", "double", "double"),
)
_ANSWER_SECONDS = 600.0
_PAUSE_SECONDS = 0.001

Move = tuple[str, int]
"""A word of ``MOVES``, and which request or answer: an index, which may be larger than there are."""


def moves(*, moves_min: int = 6, moves_max: int = 16) -> st.SearchStrategy[list[Move]]:
    """Moves of a network, for :meth:`Network.move`."""
    move = st.tuples(st.sampled_from(_WEIGHED), st.integers(0, 7))
    return st.lists(move, min_size=moves_min, max_size=moves_max)


@dataclass(frozen=True, eq=False)
class Request:
    """A batch on its way to a bucket.

    Attributes:
        target: The bucket.
        changes, writer_id, sequence, epoch, schema_id: The arguments of :meth:`writer.AppendTarget.submit`.
        receive: Takes the answer, or the error, each time one arrives.
    """

    target: AppendTarget
    changes: Changes
    writer_id: int
    sequence: int
    epoch: int
    schema_id: int | None
    receive: Callable[[Any], None]

    def submit(self) -> Future[Any]:
        """Give the batch to the bucket; an error is in the answer."""
        options = {} if self.schema_id is None else {"schema_id": self.schema_id}
        try:
            return self.target.submit(self.changes, self.writer_id, self.sequence, self.epoch, **options)
        except StoreError as error:
            refused: Future[Any] = Future()
            refused.set_exception(error)
            return refused


@dataclass(frozen=True, eq=False)
class Reply:
    """An answer on its way to a writer.

    Attributes:
        request: The request that it answers.
        answer: An :class:`writer.Appended`, or a StoreError.
    """

    request: Request
    answer: Any


class Network:
    """What is on its way between writers and buckets.

    Attributes:
        requests: Requests that have not arrived, oldest first.
        replies: Answers that have not arrived, oldest first.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.replies: list[Reply] = []

    def deliver(self, requests: list[Request], *, lose_answers: bool = False) -> None:
        """Deliver requests to their buckets together; the answers are in the network afterwards."""
        answers = [(request, request.submit()) for request in requests]
        for request, answer in answers:
            reply = Reply(request, answer.exception(_ANSWER_SECONDS) or answer.result())
            if not lose_answers:
                self.replies.append(reply)

    def receive(self, reply: Reply) -> None:
        """Deliver an answer to its writer."""
        reply.request.receive(reply.answer)

    def exchange(self, requests: list[Request]) -> None:
        """Deliver requests to their buckets, and the answers to their writers, in this order."""
        earlier, self.replies = self.replies, []
        self.deliver(requests)
        replies, self.replies = self.replies, earlier
        for reply in replies:
            self.receive(reply)

    def carry_everything(self) -> None:
        """Deliver all answers, then all requests and their answers; what writers send meanwhile stays on its way."""
        replies, self.replies = self.replies, []
        for reply in replies:
            self.receive(reply)
        requests, self.requests = self.requests, []
        self.exchange(requests)

    def move(self, move: str, place: int) -> None:
        """Let one of ``MOVES`` happen; nothing happens if nothing is on its way.

        Args:
            move: A word of ``MOVES``.
            place: Which request or answer, counted from the oldest, and again from it after the newest. For ``flow``
                and ``group``, up to which request.
        """
        if move in ("answer", "forget"):
            if self.replies:
                reply = self.replies.pop(place % len(self.replies))
                if move == "answer":
                    self.receive(reply)
            return
        if not self.requests:
            return
        chosen = place % len(self.requests)
        match move:
            case "carry":
                self.exchange([self.requests.pop(chosen)])
            case "deliver":
                self.deliver([self.requests.pop(chosen)])
            case "flow":
                self.exchange(self._taken(place + 1))
            case "group":
                self.deliver(self._taken(place + 1))
            case "unheard":
                self.deliver([self.requests.pop(chosen)], lose_answers=True)
            case "lose":
                del self.requests[chosen]
            case "double":
                self.requests.append(self.requests[chosen])

    def _taken(self, count: int) -> list[Request]:
        return [self.requests.pop(0) for _ in range(min(count, len(self.requests)))]

    @contextmanager
    def carried(self, random: Random) -> Iterator[None]:
        """While the context is open, a thread makes moves by chance. Nobody else may make any.

        Args:
            random: Chooses. What its choices meet also depends on the threads of the writers.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._carry, args=(ended, random), name="kvstore-testing-network", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _carry(self, ended: threading.Event, random: Random) -> None:
        # Writers only append requests meanwhile, and every move takes by an index: no lock is needed.
        while not ended.is_set():
            if self.requests or self.replies:
                self.move(random.choice(_WEIGHED), random.randrange(8))
            else:
                ended.wait(_PAUSE_SECONDS)


class LossyTarget:
    """A bucket at the other end of a network; a :class:`writer.AppendTarget`.

    What is sent to it stays on its way until the network moves it. ``begin`` is never lost.

    Args:
        target: The bucket, or what stands for it.
        network: The network, which other targets may share; left out, one of its own.
    """

    def __init__(self, target: AppendTarget, network: Network | None = None) -> None:
        self._target = target
        self.network = Network() if network is None else network

    def submit(
        self, changes: Changes, writer_id: int, sequence: int, writer_epoch: int, *, schema_id: int | None = None
    ) -> Future[Any]:
        """Put a batch into the network. The first answer that arrives is the answer; none may ever arrive."""
        answer: Future[Any] = Future()

        def receive(result: Any) -> None:
            if not answer.done():
                if isinstance(result, BaseException):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)

        self.send(changes, writer_id, sequence, writer_epoch, receive, schema_id=schema_id)
        return answer

    def send(
        self,
        changes: Changes,
        writer_id: int,
        sequence: int,
        writer_epoch: int,
        receive: Callable[[Any], None],
        *,
        schema_id: int | None = None,
    ) -> None:
        """Put a batch into the network; ``receive`` is called with each answer or error that arrives."""
        self.network.requests.append(
            Request(self._target, changes, writer_id, sequence, writer_epoch, schema_id, receive)
        )

    def begin(self, writer_id: int) -> int | None:
        """Start as the current incarnation of a named writer; see :meth:`writer.AppendTarget.begin`."""
        return self._target.begin(writer_id)


class ModelTarget:
    """A bucket in memory that keeps the rules of sequences: a :class:`writer.AppendTarget` over a :class:`Model`.

    Args:
        model: The table; by default a log table, whose ``log`` has all rows in the order in which they came.
    """

    def __init__(self, model: Model | None = None) -> None:
        self.model = Model(()) if model is None else model

    def submit(self, changes: Changes, writer_id: int, sequence: int, writer_epoch: int, **_: Any) -> Future[Any]:
        """Apply a batch; the answer is there at once. A schema id has no meaning here: rows are read by their names."""
        answer: Future[Any] = Future()
        words = ["delete" if is_delete else "upsert" for is_delete in changes.is_delete.to_pylist()]
        operations: list[Operation] = list(zip(words, changes.rows.to_pylist(), strict=True))
        try:
            answer.set_result(self.model.apply(operations, writer_id, sequence, writer_epoch))
        except Refused as refused:
            message = "The model refuses this batch."
            answer.set_exception(refused.error(message, writer_id=writer_id, sequence=sequence, epoch=writer_epoch))
        return answer

    def begin(self, writer_id: int) -> int | None:
        """Sequence of the last batch of a writer; None if there is none."""
        sent = self.model.sent.get(writer_id)
        return sent[-1][0] if sent else None
