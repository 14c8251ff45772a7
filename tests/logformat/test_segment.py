from __future__ import annotations

import struct
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from logformat.errors import CorruptBatch, UnsupportedVersion
from logformat.log.segment import HEAD_BYTES, NO_OFFSET, START, SegmentHead, decode_head, encode_head
from tests.logformat.damage import bit_flips, cuts

I64 = st.integers(-(2**63), 2**63 - 1)
HEAD = SegmentHead(UUID(int=0x0123456789ABCDEF0123456789ABCDEF), 7, 1, 100, 40, 4096)


@given(
    st.builds(
        SegmentHead,
        store_id=st.uuids(),
        table_id=st.integers(-(2**31), 2**31 - 1),
        bucket_id=st.integers(-(2**31), 2**31 - 1),
        base_offset=I64,
        previous_base=I64,
        previous_end=st.integers(0, 2**32 - 1),
    ),
    st.binary(max_size=10),
)
def test_any_head_survives_a_round_trip_whatever_follows_it(head: SegmentHead, rest: bytes) -> None:
    assert len(encode_head(head)) == HEAD_BYTES == 64
    assert decode_head(encode_head(head) + rest) == decode_head(memoryview(encode_head(head))) == head


def test_the_first_segment_has_no_predecessor() -> None:
    first = decode_head(encode_head(SegmentHead(HEAD.store_id, 7, 1, 0)))
    assert (first.previous_base, first.previous_end) == (NO_OFFSET, START) == (-1, 0)


def test_every_flipped_bit_is_detected() -> None:
    for damaged in bit_flips(encode_head(HEAD)):
        with pytest.raises(CorruptBatch):
            decode_head(damaged)


def test_a_truncated_head_is_refused() -> None:
    for damaged in cuts(encode_head(HEAD)):
        with pytest.raises(CorruptBatch):
            decode_head(damaged)


def test_a_newer_version_is_refused_as_such() -> None:
    body = encode_head(HEAD)[:4] + struct.pack("<H", 2) + encode_head(HEAD)[6:60]
    with pytest.raises(UnsupportedVersion) as refused:
        decode_head(body + struct.pack("<I", crc32c(body)))
    assert refused.value.where == {"version": 2}


def test_the_encoding_of_a_head_is_frozen() -> None:
    assert encode_head(HEAD).hex(" ", -8) == (
        "4b564c4701000000 0700000000000000 0123456789abcdef 0123456789abcdef "
        "0100000000000000 6400000000000000 2800000000000000 00100000d613377a"
    )
