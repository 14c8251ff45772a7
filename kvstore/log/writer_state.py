"""The table's memory of writers: the last five batches of each.

* It is asked before any merge: a batch seen before is answered, never applied again.
* A writer's sequences go 0, 1, … 2^31-1, 0 …; anything else than the next one, or one of the last five, is refused.
* A writer without a name is forgotten seven days after its last batch, by the timestamps in the log: whoever replays
  the log decides the same, and no more is kept than of the writers of seven days.
* All of it can be rebuilt from batch headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from kvstore.errors import OutOfOrderSequence, WriterFenced
from logformat.batch import NAMED_WRITER, BatchHeader
from logformat.ids import NO_SEQUENCE, NO_WRITER, Epoch, Offset, Sequence, WriterId, next_sequence
from logformat.writer_entry import WINDOW, RememberedBatch, WriterEntry, encode_snapshot

EXPIRY_MS = 7 * 24 * 3600 * 1000


class WriterStates:
    """Writers of one bucket.

    Args:
        writers: Those known.
    """

    def __init__(self, writers: Mapping[WriterId, WriterEntry]) -> None:
        self._writers = dict(writers)
        # Those without a name, by the time of their last batch: times never decrease, so who writes goes to the end.
        unnamed = ((id, entry.batches[-1].timestamp) for id, entry in writers.items() if not entry.named)
        self._expiring = dict(sorted(unnamed, key=lambda last: last[1]))

    def check(
        self, writer_id: WriterId, sequence: Sequence, epoch: Epoch, *, now_ms: int, last_offset: Offset
    ) -> RememberedBatch | None:
        """Whether a batch may be applied.

        Args:
            now_ms: Commit timestamp the batch would get.
            last_offset: Offset its last change would get; for the message only.

        Returns:
            The batch as it was appended before, if it was; None if it is to be applied.

        Raises:
            OutOfOrderSequence: It is neither the next one nor one of the last five.
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
                    "A newer incarnation of this writer has written; this one is over.",
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
        """Whether a batch is one of its writer's last five, expired or not."""
        entry = self._writers.get(writer_id)
        return entry is not None and any(batch.sequence == sequence for batch in entry.batches)

    def last_sequence(self, writer_id: WriterId, *, now_ms: int) -> Sequence | None:
        """Sequence of a writer's last batch; None if there is none, or it is forgotten by now."""
        entry = self._live(writer_id, now_ms)
        return None if entry is None else entry.batches[-1].sequence

    def remember(self, header: BatchHeader) -> dict[WriterId, WriterEntry | None]:
        """Note a batch that is in the log, whatever its sequence.

        Returns:
            Entries that changed: the writer's, if there is one, and None for each writer that has expired by now.
        """
        changed: dict[WriterId, WriterEntry | None] = dict.fromkeys(self._forget_expired(header.commit_timestamp))
        writer_id = header.writer_id
        if writer_id == NO_WRITER:
            return changed
        batch = RememberedBatch(
            header.batch_sequence, header.last_offset_delta, header.base_offset, header.commit_timestamp
        )
        before = self._writers.get(writer_id)
        batches = (*before.batches, batch)[-WINDOW:] if before else (batch,)
        entry = WriterEntry(Epoch(header.writer_epoch), bool(header.attributes & NAMED_WRITER), batches)
        self._writers[writer_id] = changed[writer_id] = entry
        self._expiring.pop(writer_id, None)
        if not entry.named:
            self._expiring[writer_id] = batch.timestamp
        return changed

    def all(self) -> dict[WriterId, WriterEntry]:
        """Every writer remembered."""
        return dict(self._writers)

    def snapshot(self, next_offset: Offset) -> bytes:
        """All of it, encoded, as it is when the log ends at ``next_offset``."""
        return encode_snapshot(next_offset, self._writers)

    def _live(self, writer_id: WriterId, now_ms: int) -> WriterEntry | None:
        entry = self._writers.get(writer_id)
        if entry is None or entry.named or not _has_expired(entry.batches[-1].timestamp, now_ms):
            return entry
        return None

    def _forget_expired(self, now_ms: int) -> list[WriterId]:
        expired = [id for id, _ in takewhile(lambda last: _has_expired(last[1], now_ms), self._expiring.items())]
        for writer_id in expired:
            del self._expiring[writer_id], self._writers[writer_id]
        return expired


def _has_expired(timestamp: int, now_ms: int) -> bool:
    return now_ms - timestamp >= EXPIRY_MS
