from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from logformat.errors import CorruptData, UnsupportedVersion
from logformat.log.index_state import IndexState, decode, encode
from tests.logformat.damage import bit_flips, cuts

I64 = st.integers(-(2**63), 2**63 - 1)
STATE = IndexState(7, 1, 100, 40, 4096, 90, 12, 2**64 - 1, 1_700_000_000_000, 42)
TIMED = STATE._replace(uncounted_ms=3_600_001, back_offset=99)


@given(
    st.builds(
        IndexState,
        table_id=I64,
        bucket_id=st.integers(0, 2**32 - 1),
        applied_offset=I64,
        synced_base=I64,
        synced_position=I64,
        synced_offset=I64,
        row_count=I64,
        digest=st.integers(0, 2**64 - 1),
        last_timestamp=I64,
        next_count=st.integers(0, 2**64 - 1),
        uncounted_ms=st.just(0) | I64,
        back_offset=st.just(0) | I64,
    )
)
def test_any_state_survives_a_round_trip(state: IndexState) -> None:
    assert decode(encode(state)) == state


def test_every_flipped_bit_is_found() -> None:
    for state in (STATE, TIMED):
        for damaged in bit_flips(encode(state)):
            with pytest.raises(CorruptData):
                decode(damaged)


def test_a_state_of_another_length_is_refused() -> None:
    for state in (STATE, TIMED):
        for damaged in [*cuts(encode(state)), encode(state) + b"\x00"]:
            with pytest.raises(CorruptData):
                decode(damaged)


@pytest.mark.parametrize(("state", "version"), [(STATE, 2), (TIMED, 1)])
def test_a_state_has_the_length_of_its_version(state: IndexState, version: int) -> None:
    body = struct.pack("<H", version) + encode(state)[6:]
    with pytest.raises(CorruptData, match="another length"):
        decode(struct.pack("<I", crc32c(body)) + body)


def test_a_newer_version_is_refused_as_such() -> None:
    body = struct.pack("<H", 3) + encode(STATE)[6:]
    with pytest.raises(UnsupportedVersion) as refused:
        decode(struct.pack("<I", crc32c(body)) + body)
    assert refused.value.where == {"version": 3}


def test_the_encoding_of_a_state_is_frozen() -> None:
    assert encode(STATE).hex(" ", -8) == (
        "63e0b43601000000 0700000000000000 0100000000000000 6400000000000000 2800000000000000 "
        "0010000000000000 5a00000000000000 0c00000000000000 ffffffffffffffff 0068e5cf8b010000 "
        "2a00000000000000"
    )
