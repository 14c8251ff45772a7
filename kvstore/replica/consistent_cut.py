"""Where buckets end so that no commit over several of them is torn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvstore.errors import ReplicaBehind
from logformat.catalog.replicas import Track
from logformat.ids import WriterId


class Committed(NamedTuple):
    """A batch of a writer of commits, and the offset it begins at."""

    writer: WriterId
    sequence: int
    offset: int


class Standing(NamedTuple):
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


def untorn(standings: Mapping[Track, Standing], writers: Iterable[WriterId]) -> dict[Track, int]:
    """The last ends of the buckets of a table at which all have the same commits of each writer.

    A bucket ends before the first of its ``batches`` that another lacks.

    Raises:
        ReplicaBehind: There are none: what comes before the batches of one is behind what another has.
    """
    writers = set(writers)
    ends = {track: standing.end for track, standing in standings.items()}
    while True:
        last = {track: standing.last(ends[track]) for track, standing in standings.items()}
        common = {writer: min(found.get(writer, -1) for found in last.values()) for writer in writers}
        for track, standing in standings.items():  # in each pass, for what is common gets less
            if any(standing.before.get(writer, -1) > sequence for writer, sequence in common.items()):
                raise ReplicaBehind(
                    "No moment of the replica has the same commits in all buckets; try again, or a later moment.",
                    table_id=track.table_id,
                    bucket=track.bucket,
                )
        cut = {
            track: min(
                (
                    each.offset
                    for each in standing.batches
                    if each.offset < ends[track] and each.writer in writers and each.sequence > common[each.writer]
                ),
                default=ends[track],
            )
            for track, standing in standings.items()
        }
        if cut == ends:
            return ends
        ends = cut
