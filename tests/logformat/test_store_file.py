from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from logformat.catalog.store_file import StoreFile, decode, encode
from logformat.errors import CorruptImage, StoreError, UnsupportedVersion
from tests.logformat.damage import bit_flips, cuts

STORE = StoreFile(store_id=UUID(int=0x0123456789ABCDEF0123456789ABCDEF), created_ms=1_700_000_000_000)


@given(st.builds(StoreFile, store_id=st.uuids(), created_ms=st.integers(-(2**63), 2**63 - 1)))
def test_any_store_survives_a_round_trip(store: StoreFile) -> None:
    assert decode(encode(store)) == store


def test_every_flipped_bit_is_detected() -> None:
    for damaged in bit_flips(encode(STORE)):
        with pytest.raises(StoreError):
            decode(damaged)


def test_a_file_that_is_too_short_or_too_long_is_refused() -> None:
    for damaged in [*cuts(encode(STORE)), encode(STORE) + b"\n", b" " + encode(STORE), encode(STORE) * 2]:
        with pytest.raises(CorruptImage):
            decode(damaged)


@pytest.mark.parametrize("format", [b"2", b"10", b"99999999999999999999"])
def test_a_newer_format_is_refused_as_such_whatever_else_it_contains(format: bytes) -> None:
    newer = encode(STORE).replace(b'"format":1', b'"format":' + format)
    for data in (newer, b'{"format":' + format + b"}", b'{"new":[],"format":' + format + b',"store_id":7}'):
        with pytest.raises(UnsupportedVersion) as refused:
            decode(data)
        assert refused.value.where == {"format": int(format)}


@given(st.binary(max_size=50))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    for damaged in (data, b'{"format":1,' + data + b"}"):
        with pytest.raises(StoreError):
            decode(damaged)


def test_a_file_that_nests_without_end_is_refused() -> None:
    with pytest.raises(CorruptImage):
        decode(b'{"x":' + b"[" * 100_000)


def test_the_encoding_of_a_store_is_frozen() -> None:
    uuid = b"01234567-89ab-cdef-0123-456789abcdef"
    written = b'{"format":1,"store_id":"%s","created_ms":1700000000000,"crc32c":686661245}\n' % uuid
    assert encode(STORE) == written
