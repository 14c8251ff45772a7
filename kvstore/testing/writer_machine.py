"""A machine that gives batches to a writer, behind a network that loses some, and checks what reaches the bucket.

The bucket keeps the rules of sequences (:class:`ModelTarget`), so that whatever is wrong is the writer's.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstore.testing.model import WINDOW
from kvstore.testing.network import LossyTarget, ModelTarget, Move, moves
from kvstore.testing.sequences import RuleBroken
from logformat.rows.changes import Changes
from writer.target import AppendTarget

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
_BATCHES = st.lists(st.integers(0, 3), min_size=1, max_size=WINDOW + 2)
_FIRST_BATCHES = st.lists(st.integers(0, 3), min_size=WINDOW, max_size=WINDOW + 3)
_ROUNDS_MAX = 200


class SequenceWriter(Protocol):
    """A writer that sends batches to one bucket until they are acknowledged.

    It has no thread, and learns the time only by ``poll``.
    """

    def send(self, changes: Changes) -> None:
        """Take a batch, to be sent now or later."""

    def poll(self, seconds: float) -> None:
        """Do what is due now.

        Args:
            seconds: Time that has passed since the last call. What was sent may have been answered meanwhile.
        """

    def waiting(self) -> int:
        """Number of batches that are not acknowledged."""


class WriterMachine(RuleBasedStateMachine):
    """Checks a :class:`SequenceWriter`: every batch reaches the log once and in order, whatever the network loses.

    The rules are those of ``kvstore.testing.WRITER_RULES``; a broken one is a :class:`RuleBroken`. A subclass creates
    the writer. Its ``TestCase`` is a test for pytest or unittest.

    Attributes:
        seconds: After this time without an answer, a writer must have sent its batch again.
    """

    seconds: float = 60.0

    def __init__(self) -> None:
        super().__init__()
        self.writer: SequenceWriter
        self.bucket = ModelTarget()
        self.lossy = LossyTarget(self.bucket)
        self._watched = _Watched(self.lossy)
        self._rows = 0

    def create(self, target: AppendTarget) -> SequenceWriter:
        """A new writer without a name, that sends to a bucket; called once for each history."""
        raise NotImplementedError("A subclass of WriterMachine must have `create`, which returns what it tests.")

    def close(self) -> None:
        """Give up ``self.writer``; called at the end of each history."""

    @initialize(batches=_FIRST_BATCHES)
    def begin(self, batches: list[int]) -> None:
        """Create the writer, and give it the first batches."""
        self.writer = self.create(self._watched)
        self.send(batches)

    @rule(batches=_BATCHES)
    def send(self, batches: list[int]) -> None:
        """Give batches of some rows to the writer."""
        for rows in batches:
            numbers = range(self._rows, self._rows + rows)
            self._rows += rows
            columns = [pa.array(numbers, pa.int64())] * 2
            self.writer.send(Changes.upserts(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)))
        self.writer.poll(0.0)

    @rule(moves=moves())
    def carry(self, moves: list[Move]) -> None:
        """Let the network deliver and lose some of what is on its way."""
        for move, number in moves:
            self.lossy.network.move(move, number)
            self.writer.poll(0.0)

    @rule(parts=st.integers(1, 4))
    def wait(self, parts: int) -> None:
        """Let time pass."""
        self.writer.poll(self.seconds / parts)

    def teardown(self) -> None:
        """Lose nothing from now on; the writer must come to an end, and the log must have every row."""
        if not hasattr(self, "writer"):
            return
        try:
            if self._watched.broken is None:
                self._finish()
        finally:
            self.close()

    def _finish(self) -> None:
        for _ in range(_ROUNDS_MAX):
            self.check()
            if not self.writer.waiting():
                break
            self.writer.poll(self.seconds)
            self.lossy.network.carry_everything()
            self.writer.poll(0.0)
        else:
            waiting = self.writer.waiting()
            raise RuleBroken("end", f"Batches that still wait {_ROUNDS_MAX} polls after the last loss: {waiting}.")
        count = len(self.bucket.model.log)
        if count != self._rows:
            raise RuleBroken("once", f"All is acknowledged, but the log has {count} rows instead of {self._rows}.")

    @invariant()
    def check(self) -> None:
        """Compare the log with what was given to the writer."""
        if self._watched.broken is not None:  # raised before, maybe where a future keeps it
            raise self._watched.broken
        numbers = [row["v"] for _, _, row, _ in self.bucket.model.log]
        if numbers != [*range(len(numbers))]:
            self._watched.broken = RuleBroken("once", f"The log has the rows {numbers} instead of 0, 1, 2 …")
            raise self._watched.broken


class _Watched:
    """Looks at what a writer sends.

    Attributes:
        broken: The first rule that it broke.
    """

    def __init__(self, lossy: LossyTarget) -> None:
        self._lossy = lossy
        self._batches: list[Changes] = []
        self._last_answered = -1
        self.broken: RuleBroken | None = None

    def submit(
        self, changes: Changes, writer_id: int, sequence: int, writer_epoch: int, *, schema_id: int | None = None
    ) -> Future[Any]:
        self._look(changes, sequence)
        answer = self._lossy.submit(changes, writer_id, sequence, writer_epoch, schema_id=schema_id)

        def answered(done: Future[Any]) -> None:
            if done.exception() is None:
                self._last_answered = max(self._last_answered, sequence)

        answer.add_done_callback(answered)
        return answer

    def _look(self, changes: Changes, sequence: int) -> None:
        rows = self._batches[sequence].rows if 0 <= sequence < len(self._batches) else None
        if rows is None and sequence != len(self._batches):
            self._break("numbers", f"Sequence {sequence} is sent after {len(self._batches) - 1}.")
        if rows is not None and rows != changes.rows:
            self._break("same", f"Sequence {sequence} has {changes.rows.num_rows} rows, before it had {rows.num_rows}.")
        if sequence > self._last_answered + WINDOW:
            self._break("five", f"Sequence {sequence} is sent after {self._last_answered}, the last one acknowledged.")
        if rows is None:
            self._batches.append(changes)

    def _break(self, rule: str, what: str) -> None:
        self.broken = RuleBroken(rule, what)
        raise self.broken

    def begin(self, writer_id: int) -> int | None:
        return self._lossy.begin(writer_id)
