"""What :class:`SequenceMachine` needs of the store that it tests, and the rules that it checks.

Only :class:`SequenceTarget` is required. The other protocols are optional: the machine finds out by itself which of
their methods a target has, and checks what they promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kvstore.testing.model import Operation, Row

RULES = {
    "next": "A batch with the next sequence is applied, and its offsets follow those of the batch before.",
    "no effect": "A batch without effect takes one offset, and its sequence.",
    "no writer": "A batch without a writer is applied each time it is sent.",
    "duplicate": "One of a writer's last five batches is not applied again: its answer has the first offsets.",
    "gap": "A batch that is neither the next one nor one of the last five is refused, and leaves nothing.",
    "content": "A batch that is refused for its content leaves nothing, and its sequence is still expected.",
    "fence": "A batch of an older epoch than was seen is refused, and leaves nothing.",
    "name": "A name that is opened again fences its former epoch, and knows its last sequence in every bucket.",
    "epoch": "An epoch is applied in every bucket or in none, and once.",
    "restart": "What was answered is there after a restart.",
}
"""The rules of sequences: what :class:`SequenceMachine` checks of a store."""
WRITER_RULES = {
    "numbers": "A writer numbers its batches 0, 1, 2 …, and sends none before the ones before it.",
    "same": "A sequence stands for the same rows each time it is sent.",
    "five": "At most five batches are sent after the last one that is acknowledged.",
    "once": "Every row is written once and in order, whatever is lost.",
    "end": "If nothing is lost, every batch is acknowledged at some time.",
}
"""What :class:`WriterMachine` checks of a writer."""


class RuleBroken(AssertionError):
    """The store or the writer breaks a rule of sequences.

    Attributes:
        rule: A key of ``RULES``, or of ``WRITER_RULES``.
    """

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{(RULES | WRITER_RULES)[rule]}\n{what}")
        self.rule = rule


class Offsets(Protocol):
    """The answer to a batch: :class:`Answer`, :class:`kvstore.AppendResult`, or anything with these attributes."""

    @property
    def first_offset(self) -> int:
        """Offset of its first change, or the one offset that a batch without effect took."""

    @property
    def last_offset(self) -> int:
        """Offset of its last change, inclusive."""

    @property
    def duplicated(self) -> bool:
        """Whether the batch was there before; then the offsets are those it got the first time."""


class SequenceTarget(Protocol):
    """A store of rows ``{"k": …, "v": …}`` by ``k``, with a log of changes for each bucket."""

    def append(self, operations: list[Operation], *, bucket: int, writer: int, sequence: int, epoch: int) -> Offsets:
        """Apply one batch: all of it or nothing, in order.

        Args:
            operations: ``("upsert", {"k": …, "v": …})`` and ``("delete", {"k": …})``.
            bucket: From 0 to :attr:`SequenceMachine.buckets` - 1.
            writer: The writer of the batch; -1 for none.
            sequence: The number of the batch among its writer's in this bucket, from 0; -1 without a writer.
            epoch: Incarnation of the writer.

        Raises:
            Exception: The batch is refused: :attr:`SequenceMachine.out_of_order`, :attr:`SequenceMachine.fenced` or
                :attr:`SequenceMachine.refused`.
        """

    def changes(self, bucket: int) -> Sequence[tuple[int, str, Row]]:
        """All changes in the log of a bucket: ``(offset, "upsert" or "delete", row)``.

        Where an update is two changes, the first one is the delete of the former row.
        """


@runtime_checkable
class Restarts(Protocol):
    """A target that outlives its process."""

    def restart(self) -> None:
        """Stop the process, in order or not, and start another one on what it has stored."""


@runtime_checkable
class NamesWriters(Protocol):
    """A target with writers that keep their sequences over restarts of their programs."""

    def open_writer(self, name: str) -> tuple[int, int]:
        """Begin a new incarnation of a named writer: its id, always the same and above 99, and its epoch."""

    def last_sequence(self, bucket: int, writer: int) -> int | None:
        """Sequence of the last batch of a writer in a bucket; None if there is none."""


@runtime_checkable
class AppliesEpochs(Protocol):
    """A target that applies batches to all buckets together."""

    def append_epoch(self, batches: list[list[Operation]], *, name: str, epoch: int) -> Sequence[Offsets]:
        """Apply one batch to each bucket: to all or to none.

        Args:
            batches: One for each bucket.
            name: Who counts the epochs.
            epoch: The number of this one, from 0.

        Returns:
            The answer of each bucket.

        Raises:
            Exception: As :meth:`SequenceTarget.append` raises.
        """


@runtime_checkable
class Renumbers(Protocol):
    """A target whose stored sequences a test can change: nobody sends 2^31 batches to see what comes then."""

    def renumber(self, writer: int, sequence: int) -> None:
        """Make the only batch of a writer in each bucket look as if it had been sent with another sequence."""
