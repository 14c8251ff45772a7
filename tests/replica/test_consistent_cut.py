"""Buckets of which each has the beginning of the same commits end where all have the same ones, or nowhere."""

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
    """Of each bucket how many commits are before what is told and how many in all; where each begins; what is told."""
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
def test_untorn(given: tuple[list[tuple[int, int]], dict[Stream, list[int]], dict[Stream, BucketHistory]]) -> None:
    counts, begins, histories = given
    common = min(has for _, has in counts)
    writers = [WriterId(id) for id in (1, 2, 3)]
    if common < max(before for before, _ in counts):
        with pytest.raises(ReplicaBehind, match="At no moment"):
            consistent_cut(histories, writers)
    else:
        assert consistent_cut(histories, writers) == {stream: places[common] for stream, places in begins.items()}
