from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings, strategies as st

from kvstore.testing.strategies import SCALAR_TYPES, projections, rows as record_batches
from logformat import ChangeType
from logformat.errors import CorruptBatch, InvalidRequest
from logformat.log.batch import (
    ALIGNMENT,
    APPEND_ONLY,
    BATCH_BYTES_MAX,
    NAMED_WRITER,
    RECORDS_MAX,
    BatchHeader,
    LogBatch,
    decode_batch,
    decode_header,
    encode_batch,
    encode_parts,
    verify,
)
from tests.logformat.damage import bit_flips, cuts
from tests.support.contents import contents

MAGICS = [0, 1, 2, 3]
COMPRESSIONS = [None, "lz4", "zstd"]

# By magic; Fluss asserts those of 0 to 2 in its LogRecordBatchFormatTest.
HEADER_BYTES = [48, 52, 56, 96]
EMPTY_BYTES = [48, 52, 56, 128]
CRC_POSITION = [21, 21, 25, 16]
RECORD_COUNT_POSITION = [44, 44, 48, 48]
STATISTICS_LENGTH_POSITION = [None, 48, 52, 76]
RECORDS_POSITION = 80
FIELDS: list[dict[str, tuple[int, str]]] = [
    *(
        {
            "base_offset": (0, "q"),
            "commit_timestamp": (13, "q"),
            **({"leader_epoch": (21, "i")} if epoch_bytes else {}),
            "schema_id": (25 + epoch_bytes, "h"),
            "attributes": (27 + epoch_bytes, "B"),
            "last_offset_delta": (28 + epoch_bytes, "i"),
            "writer_id": (32 + epoch_bytes, "q"),
            "batch_sequence": (40 + epoch_bytes, "i"),
        }
        for epoch_bytes in (0, 0, 4)
    ),
    {
        "base_offset": (0, "q"),
        "attributes": (13, "B"),
        "schema_id": (14, "h"),
        "last_offset_delta": (20, "i"),
        "commit_timestamp": (24, "q"),
        "writer_id": (32, "q"),
        "batch_sequence": (40, "i"),
        "writer_epoch": (44, "i"),
        "leader_epoch": (52, "i"),
        "durable_end": (56, "q"),
        "table_id": (64, "q"),
        "bucket_id": (72, "i"),
    },
]

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int8()))])
ROWS = pa.record_batch([[1, None, 3], ["one", "zwei", None], [[1], None, []]], schema=SCHEMA)
CHANGES = np.array([ChangeType.INSERT, ChangeType.UPDATE_PREIMAGE, ChangeType.DELETE], np.uint8)
EMPTY = LogBatch(base_offset=40, commit_timestamp=7, schema_id=1, writer_id=5, batch_sequence=2)
BATCH = LogBatch(base_offset=40, commit_timestamp=7, schema_id=1, writer_id=5, change_types=CHANGES, rows=ROWS)

every_magic = pytest.mark.parametrize("magic", MAGICS)
every_compression = pytest.mark.parametrize("compression", COMPRESSIONS)


def sealed(batch: bytes, magic: int) -> bytes:
    """The batch with a checksum that matches its bytes."""
    place = CRC_POSITION[magic]
    crc = crc32c(batch[place + 4 :], crc32c(batch[:place]) if magic == 3 else 0)
    return batch[:place] + struct.pack("<I", crc) + batch[place + 4 :]


def patched(batch: bytes, magic: int, place: int, kind: str, value: int) -> bytes:
    """The batch with one field of its header overwritten, and a matching checksum."""
    damaged = bytearray(batch)
    struct.pack_into(f"<{kind}", damaged, place, value)
    return sealed(bytes(damaged), magic)


def decodes_or_is_refused(data: bytes, schema: pa.Schema = SCHEMA, columns: list[str] | None = None) -> None:
    try:
        batch = decode_batch(data, schema, columns)
    except CorruptBatch:
        return
    batch.rows.validate(full=True)
    assert batch.rows.num_rows == len(batch.change_types) == batch.record_count
    assert batch.rows.schema.names == (schema.names if columns is None else columns)


@st.composite
def batches(draw: st.DrawFn) -> LogBatch:
    """Batches with any rows and any header."""
    rows = draw(record_batches())
    attributes = draw(st.sampled_from([0, APPEND_ONLY, NAMED_WRITER, APPEND_ONLY | NAMED_WRITER]))
    i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
    change = st.sampled_from(ChangeType)
    changes = [] if attributes & APPEND_ONLY else draw(st.lists(change, min_size=len(rows), max_size=len(rows)))
    return LogBatch(
        base_offset=draw(st.integers(0, 2**63 - 2**31 - 1)),
        last_offset_delta=draw(st.integers(0, 2**31 - 1) | st.integers(0, 5)),
        commit_timestamp=draw(i64),
        schema_id=draw(st.integers(0, 2**15 - 1)),
        attributes=attributes,
        writer_id=draw(i64),
        batch_sequence=draw(i32),
        writer_epoch=draw(i32),
        leader_epoch=draw(i32),
        durable_end=draw(i64),
        table_id=draw(i64),
        bucket_id=draw(i32),
        change_types=np.array(changes, np.uint8),
        rows=rows,
        statistics=draw(st.binary(max_size=200)),
    )


IN_EVERY_MAGIC = ("base_offset", "commit_timestamp", "schema_id", "attributes", "writer_id", "batch_sequence")
ONLY_IN_3 = ("writer_epoch", "durable_end", "table_id", "bucket_id")


class TestRoundTrip:
    @given(batches(), st.sampled_from(MAGICS), st.sampled_from(COMPRESSIONS))
    def test_a_batch_survives_a_round_trip_except_fields_its_magic_lacks(
        self, batch: LogBatch, magic: int, compression: Any
    ) -> None:
        decoded, default = decode_batch(encode_batch(batch, magic, compression), batch.rows.schema), BatchHeader()
        assert decoded.rows.schema == batch.rows.schema
        assert contents(decoded.rows) == contents(batch.rows)
        assert decoded.change_types.tolist() == (batch.change_types.tolist() or [0] * len(batch.rows))
        assert (decoded.record_count, decoded.magic) == (len(batch.rows), magic)
        for name in IN_EVERY_MAGIC:
            assert getattr(decoded, name) == getattr(batch, name)
        # Fields that a magic lacks get their defaults.
        assert decoded.statistics == (batch.statistics if magic > 0 else b"")
        assert decoded.leader_epoch == (batch if magic > 1 else default).leader_epoch
        for name in ONLY_IN_3:
            assert getattr(decoded, name) == getattr(batch if magic == 3 else default, name)

    @given(batches(), st.sampled_from(MAGICS), st.sampled_from(COMPRESSIONS), st.data())
    def test_a_projection_has_the_selected_columns_in_order(
        self, batch: LogBatch, magic: int, compression: Any, data: st.DataObject
    ) -> None:
        names = data.draw(projections(batch.rows.schema))
        encoded = encode_batch(batch, magic, compression)
        decoded = decode_batch(encoded, batch.rows.schema, names)
        assert decoded.rows.schema == pa.schema([batch.rows.schema.field(name) for name in names])
        assert contents(decoded.rows) == contents(batch.rows.select(names))
        assert decoded.record_count == len(decoded.change_types) == decoded.rows.num_rows == len(batch.rows)

    @settings(max_examples=settings().max_examples // 5)
    @given(record_batches(pa.schema([(f"c{i}", kind) for i, kind in enumerate(SCALAR_TYPES)])))
    def test_every_type_without_children_survives_a_round_trip(self, rows: pa.RecordBatch) -> None:
        batch = LogBatch(rows=rows, attributes=APPEND_ONLY)
        assert contents(decode_batch(encode_batch(batch), rows.schema).rows) == contents(rows)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
    def test_a_batch_is_decoded_from_any_buffer(self, kind: Callable[[bytes], Any]) -> None:
        assert decode_batch(kind(encode_batch(BATCH)), SCHEMA).rows == ROWS

    @given(batches(), st.sampled_from(MAGICS), st.binary(max_size=100))
    def test_bytes_after_a_batch_are_ignored(self, batch: LogBatch, magic: int, rest: bytes) -> None:
        encoded = encode_batch(batch, magic)
        once, again = (decode_batch(data, batch.rows.schema) for data in (encoded, encoded + rest))
        assert again.size == once.size == len(encoded)
        assert contents(again.rows) == contents(once.rows)

    @every_magic
    def test_the_pieces_of_a_batch_join_to_the_batch(self, magic: int) -> None:
        assert b"".join(encode_parts(BATCH, magic)) == encode_batch(BATCH, magic)

    def test_batches_are_equal_if_header_changes_rows_and_statistics_are(self) -> None:
        first, second = (decode_batch(encode_batch(BATCH), SCHEMA) for _ in range(2))
        assert first == second
        other_rows = LogBatch(base_offset=40, change_types=CHANGES, rows=ROWS.take(pa.array([0, 0, 0])))
        others = [other_rows, EMPTY, LogBatch(base_offset=40, change_types=CHANGES[::-1], rows=ROWS), "a batch"]
        assert all(first != other for other in others)


class TestOffsets:
    @given(batches(), st.sampled_from(MAGICS))
    def test_the_next_offset_follows_the_delta_and_not_the_record_count(self, batch: LogBatch, magic: int) -> None:
        header = decode_header(encode_batch(batch, magic))
        delta = max(batch.last_offset_delta, len(batch.rows) - 1)
        assert header.last_offset == batch.base_offset + max(delta, 0)
        assert header.next_offset == header.last_offset + 1

    @every_magic
    @pytest.mark.parametrize("base", [0, 1, 40, 2**40])
    def test_an_empty_batch_is_a_header_and_takes_one_offset(self, magic: int, base: int) -> None:
        encoded = encode_batch(LogBatch(base_offset=base, writer_id=5, batch_sequence=9), magic)
        decoded = decode_batch(encoded, SCHEMA)
        assert len(encoded) == decoded.size == EMPTY_BYTES[magic]
        assert (decoded.record_count, decoded.last_offset_delta) == (0, 0)
        assert (decoded.last_offset, decoded.next_offset) == (base, base + 1)
        assert (decoded.writer_id, decoded.batch_sequence) == (5, 9)
        assert decoded.rows.schema == SCHEMA

    @every_magic
    def test_the_last_of_all_offsets_may_be_taken_but_not_exceeded(self, magic: int) -> None:
        encoded = encode_batch(EMPTY, magic)
        last = patched(encoded, magic, 0, "q", 2**63 - 2)
        assert decode_batch(last, SCHEMA).next_offset == 2**63 - 1
        with pytest.raises(CorruptBatch):
            decode_batch(patched(encoded, magic, 0, "q", 2**63 - 1), SCHEMA)


class TestChangeTypes:
    @every_magic
    def test_an_append_only_batch_has_no_change_types(self, magic: int) -> None:
        place = HEADER_BYTES[magic]
        changing = encode_batch(BATCH, magic)
        appending = encode_batch(LogBatch(attributes=APPEND_ONLY, rows=ROWS), magic)
        assert changing[place : place + 3] == bytes(CHANGES)
        message = bytes.fromhex("ffffffff")
        assert appending.index(message, place) == (place if magic < 3 else 128)
        assert changing.index(message, place) == (place + 3 if magic < 3 else 128)
        assert decode_batch(appending, SCHEMA).change_types.tolist() == [ChangeType.APPEND] * 3

    @pytest.mark.parametrize("count", [0, 2, 4])
    def test_each_row_needs_one_change_type(self, count: int) -> None:
        with pytest.raises(InvalidRequest):
            encode_batch(LogBatch(rows=ROWS, change_types=np.ones(count, np.uint8)))

    @every_magic
    @pytest.mark.parametrize("code", [5, 255])
    def test_an_unknown_change_type_is_refused(self, magic: int, code: int) -> None:
        with pytest.raises(CorruptBatch):
            decode_batch(patched(encode_batch(BATCH, magic), magic, HEADER_BYTES[magic] + 1, "B", code), SCHEMA)


class TestLayout:
    @every_magic
    def test_every_field_is_at_its_documented_place(self, magic: int) -> None:
        values = {name: 2 * (i + 1) for i, name in enumerate(FIELDS[magic])}
        statistics = b"statistics" if magic else b""
        encoded = encode_batch(LogBatch(**values, rows=ROWS, change_types=CHANGES, statistics=statistics), magic)
        for name, (place, kind) in FIELDS[magic].items():
            assert struct.unpack_from(f"<{kind}", encoded, place) == (values[name],), name
        assert struct.unpack_from("<i", encoded, 8) == (len(encoded) - 12,)
        assert encoded[12] == magic
        assert struct.unpack_from("<i", encoded, RECORD_COUNT_POSITION[magic]) == (3,)
        assert sealed(encoded, magic) == encoded
        head = HEADER_BYTES[magic]
        assert encoded[head : head + len(statistics) + 3] == statistics + bytes(CHANGES)
        if magic:
            assert struct.unpack_from("<i", encoded, STATISTICS_LENGTH_POSITION[magic]) == (10,)

    @given(batches(), st.sampled_from(COMPRESSIONS))
    def test_the_message_and_the_size_of_magic_3_are_aligned(self, batch: LogBatch, compression: Any) -> None:
        encoded = encode_batch(batch, 3, compression)
        assert len(encoded) % ALIGNMENT == 0
        (position,) = struct.unpack_from("<I", encoded, RECORDS_POSITION)
        assert position % ALIGNMENT == 0
        if len(batch.rows):
            assert encoded[position : position + 4] == b"\xff" * 4
            assert not any(encoded[96 + len(batch.statistics) + len(batch.change_types) : position])
        else:
            assert position == 0

    def test_rows_of_an_aligned_batch_are_aligned_views_of_it(self) -> None:
        buffer = pa.allocate_buffer(len(encode_batch(BATCH)))
        memoryview(buffer).cast("B")[:] = encode_batch(BATCH)
        rows = decode_batch(buffer, SCHEMA).rows
        found = [part for column in rows.columns for part in column.buffers() if part is not None and part.size]
        assert len(found) >= 6
        for part in found:
            assert buffer.address <= part.address < buffer.address + buffer.size
            assert part.address % 8 == 0

    @pytest.mark.parametrize("magic", [0, 1, 2])
    def test_a_server_may_stamp_offset_and_time_on_a_fluss_batch(self, magic: int) -> None:
        stamped = bytearray(encode_batch(BATCH, magic))
        struct.pack_into("<q", stamped, 0, 1234)
        struct.pack_into("<q", stamped, 13, 5678)
        decoded = decode_batch(bytes(stamped), SCHEMA)
        assert (decoded.base_offset, decoded.commit_timestamp, decoded.rows) == (1234, 5678, ROWS)


class TestDamage:
    @pytest.mark.parametrize("batch", [EMPTY, BATCH], ids=["empty", "rows"])
    @every_compression
    def test_every_flipped_bit_of_magic_3_is_detected(self, batch: LogBatch, compression: Any) -> None:
        for damaged in bit_flips(encode_batch(batch, 3, compression)):
            with pytest.raises(CorruptBatch):
                decode_batch(damaged, SCHEMA)

    @pytest.mark.parametrize("batch", [EMPTY, BATCH], ids=["empty", "rows"])
    @pytest.mark.parametrize("magic", [0, 1, 2])
    def test_every_flipped_bit_after_the_checksum_is_detected(self, batch: LogBatch, magic: int) -> None:
        for damaged in bit_flips(encode_batch(batch, magic), CRC_POSITION[magic]):
            with pytest.raises(CorruptBatch):
                decode_batch(damaged, SCHEMA)

    @pytest.mark.parametrize("batch", [EMPTY, BATCH], ids=["empty", "rows"])
    @every_magic
    def test_a_batch_cut_anywhere_is_refused(self, batch: LogBatch, magic: int) -> None:
        for damaged in cuts(encode_batch(batch, magic)):
            with pytest.raises(CorruptBatch):
                decode_batch(damaged, SCHEMA)

    @pytest.mark.parametrize("batch", [EMPTY, BATCH], ids=["empty", "rows"])
    @every_magic
    def test_a_batch_cut_under_a_correct_length_and_checksum_is_refused_or_harmless(
        self, batch: LogBatch, magic: int
    ) -> None:
        encoded = encode_batch(batch, magic)
        for length in range(HEADER_BYTES[magic], len(encoded)):
            decodes_or_is_refused(patched(encoded[:length], magic, 8, "i", length - 12))

    @given(st.binary(max_size=300), st.sampled_from(MAGICS))
    def test_any_bytes_are_a_batch_or_are_refused(self, data: bytes, magic: int) -> None:
        decodes_or_is_refused(data)
        framed = bytearray(data.ljust(HEADER_BYTES[magic], b"\x00"))
        struct.pack_into("<qib", framed, 0, 0, len(framed) - 12, magic)
        decodes_or_is_refused(bytes(framed))
        decodes_or_is_refused(sealed(bytes(framed), magic))

    @given(batches(), st.sampled_from(MAGICS), st.sampled_from(COMPRESSIONS), st.data())
    def test_damage_under_a_correct_checksum_is_refused_or_harmless(
        self, batch: LogBatch, magic: int, compression: Any, data: st.DataObject
    ) -> None:
        damaged = bytearray(encode_batch(batch, magic, compression))
        place = st.integers(13, len(damaged) - 1)
        for _ in range(3):
            damaged[data.draw(place)] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
        names = data.draw(st.none() | st.just(batch.rows.schema.names[:1]))
        decodes_or_is_refused(sealed(bytes(damaged), magic), batch.rows.schema, names)

    @pytest.mark.parametrize("magic", [0, 3])
    @every_compression
    @pytest.mark.parametrize("columns", [None, ["s"]], ids=["all", "one"])
    def test_a_wrong_byte_anywhere_under_a_correct_checksum_is_refused_or_harmless(
        self, magic: int, compression: Any, columns: list[str] | None
    ) -> None:
        encoded = encode_batch(BATCH, magic, compression)
        for place in range(13, len(encoded)):
            for byte in (0x00, 0xFF):
                damaged = encoded[:place] + bytes([byte]) + encoded[place + 1 :]
                decodes_or_is_refused(sealed(damaged, magic), columns=columns)

    @every_magic
    @pytest.mark.parametrize("other", [*MAGICS, 4, 127, 255])
    def test_a_batch_of_one_magic_is_not_a_batch_of_another(self, magic: int, other: int) -> None:
        encoded = encode_batch(BATCH, magic)
        if other != magic:
            with pytest.raises(CorruptBatch):
                decode_batch(encoded[:12] + bytes([other]) + encoded[13:], SCHEMA)

    def test_invalid_text_is_refused_unless_validation_is_off(self) -> None:
        encoded = encode_batch(BATCH)
        damaged = sealed(encoded.replace(b"zwei", b"z\xffei"), 3)
        with pytest.raises(CorruptBatch):
            decode_batch(damaged, SCHEMA)
        assert decode_batch(damaged, SCHEMA, validate=False).rows.column("n") == ROWS.column("n")

    def test_rows_of_another_schema_are_refused(self) -> None:
        with pytest.raises(CorruptBatch):
            decode_batch(encode_batch(BATCH), pa.schema([*SCHEMA, ("more", pa.int64())]))


class TestLimits:
    @every_magic
    @pytest.mark.parametrize("length", [-(2**31), -13, -12, -1, 0, 30, BATCH_BYTES_MAX - 11, 2**31 - 1])
    def test_an_impossible_length_is_refused_whatever_follows(self, magic: int, length: int) -> None:
        damaged = bytearray(encode_batch(BATCH, magic))
        struct.pack_into("<i", damaged, 8, length)
        with pytest.raises(CorruptBatch):
            decode_header(bytes(damaged))

    @every_magic
    @pytest.mark.parametrize("count", [-(2**31), -1, 0, 2, 4, RECORDS_MAX + 1, 2**31 - 1])
    def test_a_record_count_other_than_the_number_of_rows_is_refused(self, magic: int, count: int) -> None:
        encoded = encode_batch(BATCH, magic)
        delta = FIELDS[magic]["last_offset_delta"][0]
        damaged = patched(encoded, magic, delta, "i", 2**31 - 1)
        damaged = patched(damaged, magic, RECORD_COUNT_POSITION[magic], "i", count)
        if not 0 <= count <= RECORDS_MAX:
            with pytest.raises(CorruptBatch):
                decode_header(damaged)  # before anything of that size is allocated
        elif count:
            with pytest.raises(CorruptBatch):
                decode_batch(damaged, SCHEMA)
        else:
            assert decode_batch(damaged, SCHEMA).rows.num_rows == 0

    @every_magic
    @pytest.mark.parametrize("delta", [-(2**31), -1, 0, 1])
    def test_a_delta_too_small_for_the_records_is_refused(self, magic: int, delta: int) -> None:
        place = FIELDS[magic]["last_offset_delta"][0]
        with pytest.raises(CorruptBatch):
            decode_batch(patched(encode_batch(BATCH, magic), magic, place, "i", delta), SCHEMA)

    @every_magic
    @pytest.mark.parametrize("base", [-(2**63), -1, 2**63 - 3, 2**63 - 1])
    def test_offsets_that_do_not_fit_are_refused(self, magic: int, base: int) -> None:
        with pytest.raises(CorruptBatch):
            decode_header(patched(encode_batch(BATCH, magic), magic, 0, "q", base))

    @pytest.mark.parametrize("magic", [1, 2, 3])
    @pytest.mark.parametrize("length", [-(2**31), -1, 10_000, 2**31 - 1])
    def test_statistics_that_do_not_fit_are_refused(self, magic: int, length: int) -> None:
        place = STATISTICS_LENGTH_POSITION[magic]
        for batch in (EMPTY, BATCH):
            with pytest.raises(CorruptBatch):
                decode_batch(patched(encode_batch(batch, magic), magic, place, "i", length), SCHEMA)

    @pytest.mark.parametrize("position", [0, 1, 64, 127, 129, 192, 1 << 20, 2**32 - 64])
    def test_rows_at_a_wrong_place_are_refused(self, position: int) -> None:
        with pytest.raises(CorruptBatch):
            decode_batch(patched(encode_batch(BATCH), 3, RECORDS_POSITION, "I", position), SCHEMA)

    def test_rows_within_the_statistics_are_refused(self) -> None:
        message = encode_batch(LogBatch(attributes=APPEND_ONLY, rows=ROWS))[128:]
        encoded = encode_batch(LogBatch(attributes=APPEND_ONLY, rows=ROWS, statistics=bytes(32) + message))
        with pytest.raises(CorruptBatch):
            decode_batch(patched(encoded, 3, RECORDS_POSITION, "I", 128), SCHEMA)

    @pytest.mark.parametrize("columns", [None, ["n"]], ids=["all", "one"])
    @every_magic
    @pytest.mark.parametrize("promised", [2**30 + 1, 2**40, 2**62])
    def test_a_decompression_bomb_is_refused_before_decompression(
        self, columns: list[str] | None, magic: int, promised: int
    ) -> None:
        schema = pa.schema([("n", pa.int64())])
        rows = pa.record_batch([np.zeros(1000, np.int64)], schema=schema)
        encoded = encode_batch(LogBatch(attributes=APPEND_ONLY, rows=rows), magic, "zstd")
        place = encoded.index(struct.pack("<q", 8000), HEADER_BYTES[magic] + 64)
        with pytest.raises(CorruptBatch) as refused:
            decode_batch(patched(encoded, magic, place, "q", promised), schema, columns)
        assert refused.value.where["raw_bytes"] == promised

    def test_too_many_rows_are_refused(self) -> None:
        rows = pa.record_batch([np.zeros(RECORDS_MAX + 1, np.int8)], names=["n"])
        with pytest.raises(InvalidRequest):
            encode_batch(LogBatch(attributes=APPEND_ONLY, rows=rows))

    def test_too_many_bytes_are_refused_however_well_they_compress(self) -> None:
        column = pa.array(np.zeros(RECORDS_MAX, np.int8))
        rows = pa.record_batch([column] * 33, names=[f"c{i}" for i in range(33)])
        with pytest.raises(InvalidRequest):
            encode_batch(LogBatch(attributes=APPEND_ONLY, rows=rows), compression="lz4")

    @pytest.mark.parametrize("magic", [-1, 4])
    def test_no_batch_is_written_with_an_unknown_magic(self, magic: int) -> None:
        with pytest.raises(InvalidRequest):
            encode_batch(BATCH, magic)


def test_a_header_is_decoded_without_the_rest_of_its_batch() -> None:
    encoded = encode_batch(BATCH)
    header = decode_header(encoded[:128])
    assert (header.size, header.record_count, header.base_offset) == (len(encoded), 3, 40)
    verify(header, encoded)
    with pytest.raises(CorruptBatch):
        verify(header, encoded[:-1])
