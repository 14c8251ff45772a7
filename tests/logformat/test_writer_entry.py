from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from logformat.errors import CorruptData, UnsupportedVersion
from logformat.log.writer_entry import (
    WINDOW,
    RememberedBatch,
    WriterEntry,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
)
from tests.logformat.damage import bit_flips, cuts

I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
BATCHES = st.builds(RememberedBatch, I32, I32, I64, I64)
ENTRIES = st.builds(
    *(WriterEntry, I32, st.booleans(), st.lists(BATCHES, min_size=1, max_size=WINDOW).map(tuple)),
    uncounted_ms=st.just(0) | I64,
)
ENTRY = WriterEntry(2, True, (RememberedBatch(2**31 - 1, 0, 40, 1000), RememberedBatch(0, 9, 41, 1001)))


@given(I64, ENTRIES)
def test_any_entry_survives_a_round_trip(writer_id: int, entry: WriterEntry) -> None:
    encoded = encode_entry(writer_id, entry)
    assert len(encoded) == 12 + 24 * len(entry.batches) + (8 if entry.uncounted_ms else 0)
    assert decode_entry(writer_id, encoded) == entry


@given(I64, ENTRIES, I64)
def test_an_entry_belongs_to_its_writer_only(writer_id: int, entry: WriterEntry, other: int) -> None:
    if other != writer_id:
        with pytest.raises(CorruptData):
            decode_entry(other, encode_entry(writer_id, entry))


@given(I64, st.dictionaries(I64, ENTRIES, max_size=4))
def test_any_snapshot_survives_a_round_trip(next_offset: int, writers: dict[int, WriterEntry]) -> None:
    assert decode_snapshot(encode_snapshot(next_offset, writers)) == (next_offset, writers)
    backwards = dict(reversed(writers.items()))
    assert encode_snapshot(next_offset, backwards) == encode_snapshot(next_offset, writers)


def test_an_entry_of_a_newer_version_is_refused_as_such() -> None:
    body = bytearray(encode_entry(5, ENTRY)[4:])
    struct.pack_into("<H", body, 6, 2)
    with pytest.raises(UnsupportedVersion, match="version=2"):
        decode_entry(5, struct.pack("<I", crc32c(struct.pack("<q", 5) + body)) + body)


def test_a_writer_ages_from_the_counted_time_of_its_last_batch() -> None:
    assert ENTRY.counted_ms == 1001
    assert ENTRY._replace(uncounted_ms=900).counted_ms == 101


def test_an_empty_batch_takes_the_offset_it_is_at() -> None:
    assert [batch.last_offset for batch in ENTRY.batches] == [40, 50]


def test_every_damage_of_an_entry_is_detected() -> None:
    encoded = encode_entry(5, ENTRY)
    for damaged in [*bit_flips(encoded), *cuts(encoded), encoded + b"\x00", encoded + bytes(24)]:
        with pytest.raises(CorruptData):
            decode_entry(5, damaged)


def test_every_damage_of_a_snapshot_is_detected() -> None:
    encoded = encode_snapshot(51, {5: ENTRY, 6: ENTRY})
    for damaged in [*bit_flips(encoded), *cuts(encoded), encoded + b"\x00"]:
        with pytest.raises(CorruptData):
            decode_snapshot(damaged)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<4sHHqI", b"KVWX", 1, 0, 51, 0),
        struct.pack("<4sHHqI", b"KVWS", 3, 0, 51, 0),
        struct.pack("<4sHHqI", b"KVWS", 1, 0, 51, 1),
        struct.pack("<4sHHqI", b"KVWS", 1, 0, 51, 1) + struct.pack("<qI", 5, 1000) + encode_entry(5, ENTRY),
    ],
    ids=["another file", "another version", "a writer is missing", "an entry is cut"],
)
def test_another_file_under_a_correct_checksum_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_snapshot(body + struct.pack("<I", crc32c(body)))


def test_the_encoding_of_an_entry_is_frozen() -> None:
    assert encode_entry(5, ENTRY).hex(" ", -4) == (
        "ceaa8d7f 02000000 01020000 ffffff7f 00000000 28000000 00000000 e8030000 "
        "00000000 00000000 09000000 29000000 00000000 e9030000 00000000"
    )
