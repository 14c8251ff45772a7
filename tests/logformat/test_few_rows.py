"""Few rows, encoded without Arrow and numpy: every byte is that of the codecs of whole columns."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.testing.strategies import KEY_TYPES, SCALAR_TYPES, rows as rows_of
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.errors import CorruptData
from logformat.ids import NO_SEQUENCE, NO_WRITER, Epoch, Offset, SchemaId
from logformat.log.batch import LogBatch, encode_batch
from logformat.log.change import ChangeType
from logformat.log.few_records import FewRecordsEncoder
from logformat.rows.bucketing import bucket_of, buckets_of
from logformat.rows.few.few_rows import FewRowsCodec, Operation
from logformat.rows.intake import one_batch
from logformat.rows.keys import KeyCodec
from logformat.rows.rows import RowCodec
from tests.support.contents import contents

ID = SchemaId(3)


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[str]]:
    """Rows of flat columns, some of which are the key."""
    keys = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=2))
    others = draw(st.lists(st.sampled_from(SCALAR_TYPES), max_size=10))
    fields = [pa.field(f"k{nth}", kind, False) for nth, kind in enumerate(keys)]
    fields += [pa.field(f"c{nth}", kind, draw(st.booleans())) for nth, kind in enumerate(others)]
    schema = pa.schema(draw(st.permutations(fields)))
    rows = draw(rows_of(schema, rows_max=12))
    return rows, draw(st.permutations([field.name for field in fields[: len(keys)]]))


def by_columns(rows: pa.RecordBatch, key: list[str]) -> list[tuple[bytes, bytes, int]]:
    """Keys, values and hashes as the codecs of whole columns make them."""
    schema = rows.schema
    keys = KeyCodec([schema.field(name) for name in key]).encode([rows.column(name) for name in key])
    others = [name for name in schema.names if name not in key]
    codec = RowCodec({ID: pa.schema([schema.field(name) for name in others])})
    values, hashes = codec.encode([rows.column(name) for name in others], key_sums(keys), ID)
    return list(zip(keys.to_list(), values.to_list(), hashes.tolist(), strict=True))


def upserts(codec: FewRowsCodec, rows: pa.RecordBatch) -> list[Operation]:
    found = codec.operations(rows, pa.array([False] * rows.num_rows, pa.bool_()))
    assert found is not None
    return found


class TestOperations:
    @given(batches())
    def test_keys_and_values_have_the_bytes_of_whole_columns(self, given: tuple[pa.RecordBatch, list[str]]) -> None:
        rows, key = given
        found = upserts(FewRowsCodec(rows.schema, key, ID), rows)
        assert [(each.code, each.value, each.hash) for each in found] == by_columns(rows, key)

    @given(batches(), st.data())
    def test_a_delete_has_the_key_of_its_row(
        self, given: tuple[pa.RecordBatch, list[str]], data: st.DataObject
    ) -> None:
        rows, key = given
        is_delete = data.draw(st.lists(st.booleans(), min_size=rows.num_rows, max_size=rows.num_rows))
        codec = FewRowsCodec(rows.schema, key, ID)
        found = codec.operations(rows, pa.array(is_delete, pa.bool_()))
        assert found is not None
        assert [each.value is None for each in found] == is_delete
        assert [each.code for each in found] == [each.code for each in upserts(codec, rows)]

    @given(batches())
    def test_a_stored_row_has_its_hash_and_no_other(self, given: tuple[pa.RecordBatch, list[str]]) -> None:
        rows, key = given
        codec = FewRowsCodec(rows.schema, key, ID)
        for each in upserts(codec, rows):
            assert each.value is not None
            assert codec.hash_of(each.code, each.value) == each.hash
            assert FewRowsCodec(rows.schema, key, SchemaId(4)).hash_of(each.code, each.value) is None
            for wrong in (bytes([each.value[0] ^ 1]) + each.value[1:], each.value[:-1], b""):
                with pytest.raises(CorruptData):
                    codec.hash_of(each.code, wrong)

    def test_too_long_a_key_is_left_to_the_general_code(self) -> None:
        schema = pa.schema([pa.field("k", pa.string(), False)])
        codec = FewRowsCodec(schema, ["k"], ID)
        assert codec.upsert({"k": "x" * 509}) is not None
        assert codec.upsert({"k": "x" * 510}) is None
        assert codec.delete("x" * 510) is None
        rows = pa.record_batch([["x" * 510]], schema=schema)
        assert codec.operations(rows, pa.array([False])) is None


class TestRecords:
    @given(batches())
    def test_rows_come_back(self, given: tuple[pa.RecordBatch, list[str]]) -> None:
        rows, key = given
        if rows.num_rows:
            codec = FewRowsCodec(rows.schema, key, ID)
            columns = codec.columns([(each.key, each.value) for each in upserts(codec, rows)])
            found = FewRecordsEncoder(rows.schema).rows(rows.num_rows, columns)
            found.validate(full=True)
            assert contents(found) == contents(rows)

    @given(batches(), st.integers(0, 2**40), st.integers(0, 2**31 - 1))
    def test_a_batch_has_the_bytes_that_arrow_makes(
        self, given: tuple[pa.RecordBatch, list[str]], number: int, small: int
    ) -> None:
        rows, key = given
        codec = FewRowsCodec(rows.schema, key, ID)
        columns = codec.columns([(each.key, each.value) for each in upserts(codec, rows)])
        change_types = bytes(nth % 5 for nth in range(rows.num_rows))
        batch = LogBatch(
            base_offset=Offset(number),
            commit_timestamp=number - 5,
            schema_id=ID,
            attributes=2,
            writer_id=NO_WRITER,
            batch_sequence=NO_SEQUENCE,
            writer_epoch=Epoch(small),
            durable_end=Offset(number + 1),
            table_id=small,
            bucket_id=small // 2,
            uncounted_ms=number // 3,
            change_types=np.frombuffer(change_types, np.uint8),
            # Arrow writes what a longer buffer has after its values; what lies under nulls is garbage here.
            rows=FewRecordsEncoder(rows.schema).rows(rows.num_rows, columns).take(pa.array(range(rows.num_rows)))
            if rows.num_rows
            else rows,
        )
        assert bytes(FewRecordsEncoder(rows.schema).batch(batch, change_types, columns)) == encode_batch(batch)

    def test_a_row_without_a_value_has_nulls(self) -> None:
        schema = pa.schema([("a", pa.string()), ("k", pa.int16()), ("b", pa.int64()), ("c", pa.bool_())])
        columns = FewRowsCodec(schema, ["k"], ID).columns([((b"\x05\x00",), None)])
        found = FewRecordsEncoder(schema).rows(1, columns)
        assert found.to_pylist() == [{"a": None, "k": 5, "b": None, "c": None}]

    def test_change_types_are_those_of_the_format(self) -> None:
        assert max(ChangeType) < 5


SCHEMA = pa.schema(
    [
        *(pa.field("s", pa.string()), pa.field("k", pa.int32(), False), pa.field("i", pa.int8(), False)),
        *(pa.field("f", pa.float32()), pa.field("d", pa.float64()), pa.field("b", pa.bool_())),
        *(pa.field("y", pa.binary()), pa.field("day", pa.date32()), pa.field("t", pa.timestamp("ms"))),
        *(pa.field("u", pa.timestamp("ns", "UTC")), pa.field("x", pa.binary(2)), pa.field("l", pa.uint64())),
        *(pa.field("m", pa.decimal128(5, 2)), pa.field("o", pa.time32("ms")), pa.field("w", pa.duration("s"))),
        *(pa.field("w2", pa.duration("us")), pa.field("h", pa.float16())),
    ]
)
ROW: dict[str, Any] = {"k": 1, "i": 2}
(ODD_NAN,) = struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")
TIME = dt.datetime(2024, 2, 29, 23, 59, 59, 123000)


class TestPythonRows:
    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"s": "é\x00", "y": b"\x00\x01", "f": 1.1, "d": -0.0, "b": True, "l": 2**64 - 1},
            {"f": float("inf"), "d": float("nan"), "b": False},
            {"day": dt.date(1583, 1, 1), "t": TIME, "u": TIME.replace(tzinfo=dt.UTC)},
            {"day": dt.date(9999, 12, 31), "t": dt.datetime(1, 1, 1), "u": dt.datetime(1677, 9, 22, tzinfo=dt.UTC)},
            {"x": b"\x00\xff", "m": Decimal("-999.99"), "o": dt.time.max.replace(microsecond=0), "w": -dt.timedelta(9)},
            {"m": Decimal("1e1"), "w": dt.timedelta(10**6)},
            {"u": dt.datetime(2020, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))},
            {"u": dt.datetime(2020, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)},
            {"s": None, "b": None, "t": None, "u": TIME.replace(tzinfo=dt.timezone(dt.timedelta(minutes=330)))},
        ],
    )
    def test_a_row_has_the_bytes_of_the_general_code(self, more: dict[str, Any]) -> None:
        row = {**more, **ROW}
        found = FewRowsCodec(SCHEMA, ["k"], ID).upsert(row)
        assert found is not None
        assert (found.code, found.value, found.hash) == by_columns(one_batch([row], SCHEMA), ["k"])[0]

    @pytest.mark.parametrize(
        "row",
        [
            *({"k": 1}, {"k": None, "i": 1}, {"k": 1, "i": None}, {"k": 1, "i": 2, "other": 3}, {}),
            *({**ROW, "i": 128}, {**ROW, "i": True}, {**ROW, "i": 1.0}, {**ROW, "i": np.int8(1)}, {**ROW, "i": "1"}),
            *({**ROW, "f": 1e39}, {**ROW, "f": 1}, {**ROW, "d": 1}, {**ROW, "s": b""}, {**ROW, "s": "\ud800"}),
            *({**ROW, "b": 1}, {**ROW, "y": "a"}, {**ROW, "y": bytearray(b"a")}, {**ROW, "l": -1}),
            *({**ROW, "day": TIME}, {**ROW, "t": dt.date(2024, 1, 1)}, {**ROW, "t": TIME.replace(tzinfo=dt.UTC)}),
            *({**ROW, "t": TIME.replace(microsecond=1)}, {**ROW, "u": TIME}, {**ROW, "x": b"a"}),
            *({**ROW, "m": Decimal("1000")}, {**ROW, "m": Decimal("0.001")}, {**ROW, "m": Decimal("NaN")}),
            *({**ROW, "o": dt.time(0, 0, 0, 1)}, {**ROW, "o": dt.time(1, tzinfo=dt.UTC)}, {**ROW, "m": 1}),
            *({**ROW, "w": dt.timedelta(microseconds=1)}, {**ROW, "x": bytearray(b"ab")}),
            *({**ROW, "w2": dt.timedelta(microseconds=-(2**63))}, {**ROW, "h": ODD_NAN}),
            {**ROW, "u": dt.datetime(9999, 1, 1, tzinfo=dt.UTC)},
        ],
    )
    def test_what_is_not_simple_is_left_to_the_general_code(self, row: dict[str, Any]) -> None:
        assert FewRowsCodec(SCHEMA, ["k"], ID).upsert(row) is None

    def test_a_key_is_a_value_or_a_tuple(self) -> None:
        codec = FewRowsCodec(SCHEMA, ["k", "i"], ID)
        upsert = codec.upsert({"k": -1, "i": 7})
        assert upsert is not None
        assert codec.delete((-1, 7)) == Operation(upsert.code, upsert.key, None, 0)
        assert [codec.delete(key) for key in (1, (1,), (1, 2, 3), (1, "2"), [1, 2], (1, 999), None)] == [None] * 7


@given(st.lists(st.binary(max_size=20) | st.binary(min_size=3, max_size=3).map(lambda b: b"\xff\x80" + b)))
def test_the_bucket_of_one_key_is_that_of_many(keys: list[bytes]) -> None:
    for buckets in (1, 2, 7, 1000):
        assert [bucket_of(key, buckets) for key in keys] == buckets_of(BinaryColumn.from_list(keys), buckets).tolist()
