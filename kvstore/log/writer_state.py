"""Writer state of a bucket: the last five batches of each writer.

* It is asked before any merge: a batch seen before is answered, never applied again.
* A writer's sequences go 0, 1, … 2^31-1, 0 …; anything else than the next one, or one of the last five, is refused.
* A writer without a name is forgotten seven days after its last batch, by the counted time in the headers of batches:
  replaying the log decides the same, and no more is kept than of the writers of seven days.
* Counted time grows by the step from one commit timestamp to the next, by an hour at most, and never goes back. So one
  wrong timestamp makes no writer more than an hour older.
* All of it can be rebuilt from batch headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from kvstore.errors import OutOfOrderSequence, WriterFenced
from logformat.ids import NO_SEQUENCE, NO_WRITER, SEQUENCE_MAX, Epoch, Offset, Sequence, WriterId, next_sequence
from logformat.log.batch import NAMED_WRITER, BatchHeader
from logformat.log.writer_entry import EXPIRY_MS, WINDOW, RememberedBatch, WriterEntry, encode_snapshot

STEP_MS_MAX = 3600 * 1000
"""What the step from one commit timestamp to the next counts at most."""
_SEQUENCES = SEQUENCE_MAX + 1


def uncounted_after(last_timestamp: int, uncounted_ms: int, timestamp: int) -> int:
    """How much of a batch's commit timestamp does not count.

    Args:
        last_timestamp, uncounted_ms: What the batch before has.
        timestamp: Commit timestamp of the batch.
    """
    step = timestamp - last_timestamp
    return uncounted_ms + step - min(max(step, 0), STEP_MS_MAX)


class WriterStates:
    """State of a bucket's writers.

    Args:
        writers: The known writers.
    """

    def __init__(self, writers: Mapping[WriterId, WriterEntry]) -> None:
        self._writers = dict(writers)
        # Those without a name, by the time of their last batch: it never decreases, so a writer that writes goes last.
        unnamed = ((id, entry.counted_ms) for id, entry in writers.items() if not entry.named)
        self._expiring = dict(sorted(unnamed, key=lambda last: last[1]))

    def check(
        self, writer_id: WriterId, sequence: Sequence, epoch: Epoch, *, now_ms: int, last_offset: Offset
    ) -> RememberedBatch | None:
        """Check whether a batch may be applied.

        Args:
            now_ms: Counted time the batch would get.
            last_offset: Offset its last change would get; for the message only.

        Returns:
            The batch as appended before, if it was; None if it is to be applied.

        Raises:
            OutOfOrderSequence: The batch is neither the next one nor one of the last five.
            WriterFenced: A newer incarnation of the writer has written.
        """
        if writer_id == NO_WRITER:
            return None
        entry = self._live(writer_id, now_ms)
        if entry is None:
            current = NO_SEQUENCE
        else:
            if epoch < entry.epoch:
                raise WriterFenced(
                    "A newer incarnation of this writer has written; stop using this one.",
                    writer_id=writer_id,
                    epoch=epoch,
                    current_epoch=entry.epoch,
                )
            for batch in entry.batches:
                if batch.sequence == sequence:
                    return batch
            current = entry.batches[-1].sequence
        if sequence != next_sequence(current):
            raise OutOfOrderSequence(
                f"Out of order batch sequence for writer {writer_id} at offset {last_offset}: {sequence} (incoming"
                f" batch seq.), {current} (current batch seq.); send the missing batch, or begin with a new writer id.",
                writer_id=writer_id,
                sequence=sequence,
                current=current,
            )
        return None

    def has(self, writer_id: WriterId, sequence: Sequence) -> bool:
        """Whether a batch of a commit is here, even if the writer has expired: none of its writer's is left out."""
        entry = self._writers.get(writer_id)
        return entry is not None and (entry.batches[-1].sequence - sequence) % _SEQUENCES < _SEQUENCES // 2

    def last_sequence(self, writer_id: WriterId, *, now_ms: int) -> Sequence | None:
        """Sequence of a writer's last batch; None if there is none, or it is forgotten by now, in counted time."""
        entry = self._live(writer_id, now_ms)
        return None if entry is None else entry.batches[-1].sequence

    def remember(self, header: BatchHeader) -> dict[WriterId, WriterEntry | None]:
        """Record a batch of the log, whatever its sequence.

        Returns:
            Changed entries: the writer's, if it has one, and None for each writer that has expired.
        """
        writer_id = header.writer_id
        if not self._expiring and writer_id == NO_WRITER:
            return {}
        changed: dict[WriterId, WriterEntry | None] = dict.fromkeys(self._forget_expired(header.counted_ms))
        if writer_id == NO_WRITER:
            return changed
        batch = RememberedBatch(
            header.batch_sequence, header.last_offset_delta, header.base_offset, header.commit_timestamp
        )
        before = self._writers.get(writer_id)
        batches = (*before.batches, batch)[-WINDOW:] if before else (batch,)
        named = bool(header.attributes & NAMED_WRITER)
        entry = WriterEntry(Epoch(header.writer_epoch), named, batches, header.uncounted_ms)
        self._writers[writer_id] = changed[writer_id] = entry
        self._expiring.pop(writer_id, None)
        if not entry.named:
            self._expiring[writer_id] = entry.counted_ms
        return changed

    def all(self) -> dict[WriterId, WriterEntry]:
        """All remembered writers."""
        return dict(self._writers)

    def snapshot(self, next_offset: Offset) -> bytes:
        """All writers, encoded, as of a log that ends at ``next_offset``."""
        return encode_snapshot(next_offset, self._writers)

    def _live(self, writer_id: WriterId, now_ms: int) -> WriterEntry | None:
        entry = self._writers.get(writer_id)
        if entry is None or entry.named or not _has_expired(entry.counted_ms, now_ms):
            return entry
        return None

    def _forget_expired(self, now_ms: int) -> list[WriterId]:
        expired = [id for id, _ in takewhile(lambda last: _has_expired(last[1], now_ms), self._expiring.items())]
        for writer_id in expired:
            del self._expiring[writer_id], self._writers[writer_id]
        return expired


def _has_expired(counted_ms: int, now_ms: int) -> bool:
    return now_ms - counted_ms >= EXPIRY_MS
