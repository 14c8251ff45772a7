"""Where buckets end so that no commit over several of them is torn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvstore.errors import ReplicaBehind
from logformat.catalog.replicas import Stream
from logformat.ids import WriterId


class Committed(NamedTuple):
    """A batch of a writer of commits, and the offset it begins at."""

    writer: WriterId
    sequence: int
    offset: int


class BucketHistory(NamedTuple):
    """A bucket.

    Attributes:
        before: The last sequence of each writer before ``batches``.
        batches: In the order of offsets.
        end: The offset behind them all.
    """

    before: Mapping[WriterId, int]
    batches: Sequence[Committed]
    end: int

    def last(self, end: int) -> dict[WriterId, int]:
        """The last sequence of each writer before an offset."""
        return {**self.before, **{each.writer: each.sequence for each in self.batches if each.offset < end}}


def consistent_cut(histories: Mapping[Stream, BucketHistory], writers: Iterable[WriterId]) -> dict[Stream, int]:
    """The last ends of the buckets of a table at which all have the same commits of each writer.

    A bucket ends before the first of its ``batches`` that another lacks.

    Raises:
        ReplicaBehind: There are none: what comes before the batches of one is behind what another has.
    """
    writers = set(writers)
    ends = {stream: history.end for stream, history in histories.items()}
    while True:
        last = {stream: history.last(ends[stream]) for stream, history in histories.items()}
        common = {writer: min(found.get(writer, -1) for found in last.values()) for writer in writers}
        for stream, history in histories.items():  # in each pass, for what is common gets less
            if any(history.before.get(writer, -1) > sequence for writer, sequence in common.items()):
                raise ReplicaBehind(
                    "No moment of the replica has the same commits in all buckets; try again, or a later moment.",
                    table_id=stream.table_id,
                    bucket=stream.bucket,
                )
        cut = {
            stream: min(
                (
                    each.offset
                    for each in history.batches
                    if each.offset < ends[stream] and each.writer in writers and each.sequence > common[each.writer]
                ),
                default=ends[stream],
            )
            for stream, history in histories.items()
        }
        if cut == ends:
            return ends
        ends = cut
