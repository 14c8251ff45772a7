from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from logformat.errors import CorruptData, UnsupportedVersion
from logformat.ids import Offset
from logformat.log.index_state import IndexState, decode, encode
from tests.logformat.damage import bit_flips, cuts

I64 = st.integers(-(2**63), 2**63 - 1)
STATE = IndexState(7, 1, 100, 40, 4096, 90, 12, 2**64 - 1, 1_700_000_000_000, 42)
TIMED = STATE._replace(uncounted_ms=3_600_001, back_offset=99)


SYNCED = TIMED._replace(synced_offset=Offset(102))
MERGING = SYNCED._replace(merging=SYNCED._replace(applied_offset=Offset(101), row_count=13, digest=5))
CONTENT = {
    "row_count": I64,
    "digest": st.integers(0, 2**64 - 1),
    "last_timestamp": I64,
    "next_count": st.integers(0, 2**64 - 1),
    "uncounted_ms": st.just(0) | I64,
    "back_offset": st.just(0) | I64,
}
STATES = st.builds(
    IndexState,
    table_id=I64,
    bucket_id=st.integers(0, 2**32 - 1),
    applied_offset=I64,
    synced_base=I64,
    synced_position=I64,
    synced_offset=I64,
    merging=st.none(),
    **CONTENT,
)


@given(STATES)
def test_any_state_survives_a_round_trip(state: IndexState) -> None:
    assert decode(encode(state)) == state


@given(STATES, st.lists(I64, min_size=3, max_size=3, unique=True).map(sorted), st.fixed_dictionaries(CONTENT))
def test_so_does_one_between_two(state: IndexState, offsets: list[int], content: dict[str, int]) -> None:
    applied, merged, synced = map(Offset, offsets)
    before = state._replace(applied_offset=applied, synced_offset=synced)
    state = before._replace(merging=before._replace(applied_offset=merged, **content))
    assert decode(encode(state)) == state
    assert (before.latest_offset, state.latest_offset) == (applied, merged)


@pytest.mark.parametrize(("merged", "synced"), [(100, 102), (99, 102), (103, 102)])
def test_a_merge_is_of_later_changes_that_are_durable(merged: int, synced: int) -> None:
    state = STATE._replace(synced_offset=Offset(synced))
    with pytest.raises(CorruptData, match="merged up to a wrong offset"):
        decode(encode(state._replace(merging=state._replace(applied_offset=Offset(merged)))))


def test_every_flipped_bit_is_found() -> None:
    for state in (STATE, TIMED, MERGING):
        for damaged in bit_flips(encode(state)):
            with pytest.raises(CorruptData):
                decode(damaged)


def test_a_state_of_another_length_is_refused() -> None:
    for state in (STATE, TIMED, MERGING):
        for damaged in [*cuts(encode(state)), encode(state) + b"\x00"]:
            with pytest.raises(CorruptData):
                decode(damaged)


@pytest.mark.parametrize(("state", "version"), [(STATE, 2), (TIMED, 1), (TIMED, 3), (MERGING, 2)])
def test_a_state_has_the_length_of_its_version(state: IndexState, version: int) -> None:
    body = struct.pack("<H", version) + encode(state)[6:]
    with pytest.raises(CorruptData, match="another length"):
        decode(struct.pack("<I", crc32c(body)) + body)


def test_a_newer_version_is_refused_as_such() -> None:
    body = struct.pack("<H", 4) + encode(STATE)[6:]
    with pytest.raises(UnsupportedVersion) as refused:
        decode(struct.pack("<I", crc32c(body)) + body)
    assert refused.value.where == {"version": 4}


def test_the_encoding_of_a_state_is_frozen() -> None:
    assert encode(STATE).hex(" ", -8) == (
        "63e0b43601000000 0700000000000000 0100000000000000 6400000000000000 2800000000000000 "
        "0010000000000000 5a00000000000000 0c00000000000000 ffffffffffffffff 0068e5cf8b010000 "
        "2a00000000000000"
    )
