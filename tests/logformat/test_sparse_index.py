from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from logformat.log.sparse_index import (
    ENTRY_BYTES,
    HEAD_BYTES,
    Entry,
    at_offset,
    before_time,
    decode,
    encode,
    encode_entry,
)
from tests.logformat.damage import bit_flips, cuts

ENTRIES = [Entry(40, 1000, 64), Entry(50, 1000, 4096), Entry(2**40, 2000, 1 << 20)]


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Entries as in a log: offsets and positions grow, times do not decrease."""
    count = draw(st.integers(0, 8))
    offsets, positions = (
        sorted(draw(st.sets(numbers, min_size=count, max_size=count)))
        for numbers in (st.integers(0, 30) | st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1))
    )
    times = sorted(draw(st.lists(st.integers(0, 10) | st.integers(0, 2**62), min_size=count, max_size=count)))
    return [Entry(*entry) for entry in zip(offsets, times, positions, strict=True)]


@given(entries())
def test_entries_survive_a_round_trip(listed: list[Entry]) -> None:
    assert decode(encode(listed)) == listed
    assert decode(encode([]) + b"".join(map(encode_entry, listed))) == listed


@given(entries(), st.integers(-1, 31) | st.integers(0, 2**63 - 1))
def test_the_last_entry_at_or_before_an_offset_is_found(listed: list[Entry], offset: int) -> None:
    assert at_offset(listed, offset) == next((entry for entry in reversed(listed) if entry.offset <= offset), None)


@given(entries(), st.integers(-1, 11) | st.integers(0, 2**62))
def test_the_last_entry_older_than_a_time_is_found(listed: list[Entry], time: int) -> None:
    assert before_time(listed, time) == next((entry for entry in reversed(listed) if entry.timestamp < time), None)


def test_a_flipped_bit_costs_its_entry_and_later_ones() -> None:
    written = encode(ENTRIES)
    for flip, damaged in enumerate(bit_flips(written)):
        entry = flip // 8 - HEAD_BYTES
        assert decode(damaged) == (ENTRIES[: entry // ENTRY_BYTES] if entry >= 0 else [])


def test_a_cut_costs_the_entries_after_it() -> None:
    for length, damaged in enumerate(cuts(encode(ENTRIES))):
        assert decode(damaged) == ENTRIES[: max(length - HEAD_BYTES, 0) // ENTRY_BYTES]


@pytest.mark.parametrize(
    "wrong", [Entry(50, 2000, 8192), Entry(49, 2000, 8192), Entry(60, 2000, 4096), Entry(60, 2000, 4095)]
)
def test_entries_that_do_not_ascend_end_the_list(wrong: Entry) -> None:
    assert decode(encode([*ENTRIES[:2], wrong, ENTRIES[2]])) == ENTRIES[:2]


@given(st.binary(max_size=100))
def test_other_bytes_have_no_entries(data: bytes) -> None:
    assert decode(data) == []
    assert decode(encode([]) + data) == []


def test_the_encoding_of_entries_is_frozen() -> None:
    assert encode(ENTRIES[:1]).hex(" ", -8) == (
        "4b56495801000000 0000000000000000 2800000000000000 e803000000000000 4000000077aa21f1"
    )
