from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.testing.strategies import projections, rows as record_batches
from logformat.errors import CorruptBatch
from logformat.log import arrow_message
from logformat.log.arrow_message import RAW_BYTES_MAX
from tests.logformat.damage import bit_flips, cuts
from tests.support.contents import contents

COMPRESSIONS = [None, "lz4", "zstd"]
NUMBERS = pa.record_batch([np.zeros(1000, np.int64), np.ones(1000, np.int64)], names=["a", "b"])

compressed = pytest.mark.parametrize("compression", ["lz4", "zstd"])


def encoded(rows: pa.RecordBatch, compression: Any = None) -> bytes:
    return arrow_message.encode(rows, compression).to_pybytes()


def decoded(message: bytes, schema: pa.Schema, columns: list[str] | None = None) -> pa.RecordBatch:
    return arrow_message.decode(memoryview(message), schema, columns, validate=True)


def body_of(message: bytes) -> int:
    """Position of the buffers in a message."""
    return 8 + int(struct.unpack_from("<I", message, 4)[0])


def buffer_list_of(message: bytes) -> int:
    """Position of the buffer list in the head of the message of NUMBERS, compressed: four positions and lengths."""
    for place in range(0, body_of(message) - 63, 4):
        buffers = struct.unpack_from("<8q", message, place)
        if buffers[:3] == (0, 0, 0) and 0 < buffers[3] <= buffers[4] == buffers[6] and buffers[5] == 0 < buffers[7]:
            return place
    raise ValueError("no buffers")


@given(record_batches(), st.sampled_from(COMPRESSIONS), st.data())
def test_selected_columns_of_any_rows_survive_a_round_trip(
    rows: pa.RecordBatch, compression: Any, data: st.DataObject
) -> None:
    names = data.draw(st.none() | projections(rows.schema))
    found = decoded(encoded(rows, compression), rows.schema, names)
    assert len(found) == len(rows)
    assert contents(found) == contents(rows if names is None else rows.select(names))


def test_uncompressed_columns_are_views_of_the_message() -> None:
    message = arrow_message.encode(NUMBERS)
    rows = arrow_message.decode(memoryview(message), NUMBERS.schema)
    for column in rows.columns:
        assert message.address <= column.buffers()[1].address < message.address + message.size


@compressed
def test_columns_that_are_not_selected_are_not_decompressed(compression: str) -> None:
    message = bytearray(encoded(NUMBERS, compression))
    second = message.rindex(struct.pack("<q", 8000)) + 8
    message[second : second + 4] = b"\xff" * 4
    assert decoded(bytes(message), NUMBERS.schema, ["a"]).column("a") == NUMBERS.column("a")
    with pytest.raises(CorruptBatch):
        decoded(bytes(message), NUMBERS.schema, ["b"])


class TestBombs:
    @compressed
    @pytest.mark.parametrize("columns", [None, ["a"], ["b"]], ids=["all", "a", "b"])
    @pytest.mark.parametrize("promised", [RAW_BYTES_MAX + 1, 2**40, 2**63 - 1])
    def test_a_buffer_that_claims_too_much_is_refused(
        self, compression: str, columns: list[str] | None, promised: int
    ) -> None:
        message = bytearray(encoded(NUMBERS, compression))
        struct.pack_into("<q", message, message.rindex(struct.pack("<q", 8000)), promised)
        with pytest.raises(CorruptBatch) as refused:
            decoded(bytes(message), NUMBERS.schema, columns)
        assert refused.value.where["raw_bytes"] >= promised

    @compressed
    def test_buffers_that_together_claim_too_much_are_refused(self, compression: str) -> None:
        message = encoded(NUMBERS, compression).replace(
            struct.pack("<q", 8000), struct.pack("<q", RAW_BYTES_MAX // 2 + 1)
        )
        with pytest.raises(CorruptBatch) as refused:
            decoded(message, NUMBERS.schema)
        assert refused.value.where["raw_bytes"] == RAW_BYTES_MAX + 2

    def test_a_buffer_of_negative_length_does_not_make_room_for_another(self) -> None:
        message = bytearray(encoded(NUMBERS, "zstd"))
        body, buffers = body_of(message), buffer_list_of(message)
        struct.pack_into("<q", message, body, -1)  # with this length
        struct.pack_into("<q", message, buffers + 24, -(2**40))  # and of this length
        struct.pack_into("<q", message, body + struct.unpack_from("<q", message, buffers + 48)[0], 2**36)
        allocated = pa.default_memory_pool().max_memory()
        with pytest.raises(CorruptBatch):
            decoded(bytes(message), NUMBERS.schema, ["b"])
        assert pa.default_memory_pool().max_memory() - allocated < RAW_BYTES_MAX


class TestDamage:
    ROWS = pa.record_batch([[1, None], ["one", None], [[1], None]], names=["n", "s", "l"])

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_a_message_cut_before_its_padding_is_refused(self, compression: Any) -> None:
        message = encoded(self.ROWS, compression)
        for damaged in cuts(message):
            try:
                found = decoded(damaged, self.ROWS.schema)
            except CorruptBatch:
                continue
            assert len(message) - len(damaged) < 8
            assert found == self.ROWS

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    @pytest.mark.parametrize("columns", [None, ["s", "n"]], ids=["all", "some"])
    def test_a_message_with_any_bit_flipped_is_decoded_or_refused(
        self, compression: Any, columns: list[str] | None
    ) -> None:
        for damaged in bit_flips(encoded(self.ROWS, compression)):
            with suppress(CorruptBatch):
                decoded(damaged, self.ROWS.schema, columns).validate(full=True)

    @given(st.binary(max_size=100))
    def test_any_bytes_are_refused(self, message: bytes) -> None:
        for head in (b"", b"\xff" * 4, b"\xff" * 4 + struct.pack("<I", 64)):
            with pytest.raises(CorruptBatch):
                decoded(head + message, self.ROWS.schema)

    def test_a_schema_message_is_refused(self) -> None:
        with pytest.raises(CorruptBatch):
            decoded(self.ROWS.schema.serialize().to_pybytes(), self.ROWS.schema)
