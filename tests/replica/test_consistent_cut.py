"""Consistent cuts: all buckets end with the same commits over several buckets, or there is no cut."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, strategies as st

from kvstore.errors import ReplicaBehind
from kvstore.replica.consistent_cut import BucketHistory, Committed, consistent_cut
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId, TableId, WriterId

WRITERS = st.integers(1, 3).map(WriterId)


@st.composite
def buckets(draw: st.DrawFn) -> tuple[list[tuple[int, int]], dict[Stream, list[int]], dict[Stream, BucketHistory]]:
    """For each bucket: commits before its history and in all; offset of each commit; the history."""
    writers = draw(st.lists(WRITERS, max_size=8))
    sequences = [writers[:place].count(writer) for place, writer in enumerate(writers)]
    counts, begins, histories = [], {}, {}
    for bucket in range(draw(st.integers(1, 3))):
        has = draw(st.integers(0, len(writers)))
        before = draw(st.integers(0, has))
        places = list(accumulate(draw(st.lists(st.integers(1, 5), min_size=has + 1, max_size=has + 1))))
        stream = Stream(TableId(1), BucketId(bucket))
        counts.append((before, has))
        begins[stream] = places
        histories[stream] = BucketHistory(
            dict(zip(writers[:before], sequences[:before], strict=True)),
            [Committed(writers[n], sequences[n], places[n]) for n in range(before, has)],
            places[has],
        )
    return counts, begins, histories


@given(buckets())
def test_a_cut_has_the_same_commits_in_all_buckets(
    given: tuple[list[tuple[int, int]], dict[Stream, list[int]], dict[Stream, BucketHistory]],
) -> None:
    counts, begins, histories = given
    common = min(has for _, has in counts)
    writers = [WriterId(id) for id in (1, 2, 3)]
    if common < max(before for before, _ in counts):
        with pytest.raises(ReplicaBehind, match="At no moment"):
            consistent_cut(histories, writers)
    else:
        assert consistent_cut(histories, writers) == {stream: places[common] for stream, places in begins.items()}
