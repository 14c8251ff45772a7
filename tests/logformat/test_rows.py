from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.testing.strategies import columns, projections, rows as record_batches, schemas, under_nulls
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.errors import CorruptData
from logformat.ids import SchemaId
from logformat.rows.rows import RowCodec, verified
from tests.logformat.damage import bit_flips
from tests.support.contents import contents, values_of

FIRST, SECOND, THIRD = SchemaId(1), SchemaId(2), SchemaId(3)
FIXED = pa.record_batch([pa.array([1, None], pa.int16()), [True, None]], names=["n", "b"])
VARIABLE = pa.record_batch([[1, None], ["one", None], [["a", None], []]], names=["n", "s", "l"])
KEY_ONLY = pa.schema([])


def sums_of(rows: int) -> np.ndarray:
    """Key sums of this many different keys."""
    return key_sums(BinaryColumn.from_list([b"key %d" % row for row in range(rows)]))


def values_as_stored(rows: pa.RecordBatch, schema_id: SchemaId = FIRST) -> list[bytes]:
    return RowCodec({schema_id: rows.schema}).encode(rows.columns, sums_of(len(rows)), schema_id)[0].to_list()


class TestRoundTrip:
    @given(record_batches())
    def test_rows_of_any_schema_survive_a_round_trip(self, rows: pa.RecordBatch) -> None:
        codec, sums = RowCodec({FIRST: rows.schema}), sums_of(len(rows))
        values, hashes = codec.encode(rows.columns, sums, FIRST)
        for form in (values, BinaryColumn.from_list(values.to_list())):  # as encoded, and as LMDB returns them
            found, found_hashes = codec.decode(form, sums, FIRST)
            decoded = pa.RecordBatch.from_arrays(found, schema=rows.schema)
            decoded.validate(full=True)
            assert contents(decoded) == contents(rows)
            assert found_hashes.tolist() == hashes.tolist()

    @given(record_batches(), st.integers(1, 2**16 - 1))
    def test_a_value_is_whole_words_with_checksum_and_schema(self, rows: pa.RecordBatch, schema: SchemaId) -> None:
        values, hashes = RowCodec({schema: rows.schema}).encode(rows.columns, sums_of(len(rows)), schema)
        for value, hash in zip(values.to_list(), hashes.tolist(), strict=True):
            assert len(value) % 8 == 0
            assert int.from_bytes(value[:4], "little") == hash % 2**32
            assert int.from_bytes(value[4:6], "little") == schema

    @given(record_batches(), st.data())
    def test_a_projection_has_the_selected_columns_in_order(self, rows: pa.RecordBatch, data: st.DataObject) -> None:
        names = data.draw(projections(rows.schema))
        codec, sums = RowCodec({FIRST: rows.schema}), sums_of(len(rows))
        found, _ = codec.decode(codec.encode(rows.columns, sums, FIRST)[0], sums, FIRST, names)
        assert list(map(values_of, found)) == contents(rows.select(names))

    @given(record_batches(), st.data())
    def test_equal_rows_have_equal_bytes_whatever_is_under_their_nulls(
        self, rows: pa.RecordBatch, data: st.DataObject
    ) -> None:
        twins = []
        for column in rows.columns:
            null = column.is_null().to_pylist()
            garbage = data.draw(columns(column.type, len(column), nullable=False))
            places = [len(null) * there + row for row, there in enumerate(null)]
            mixed = pa.concat_arrays([column, garbage]).take(pa.array(places, pa.int64()))
            twins.append(under_nulls(mixed, null))
        twin = pa.RecordBatch.from_arrays(twins, schema=rows.schema)
        assert values_as_stored(twin) == values_as_stored(rows)

    def test_the_encoding_of_values_is_frozen(self) -> None:
        assert [value.hex(" ", 4) for value in values_as_stored(FIXED)] == [
            "f0352dc7 01000001 00010000 00000000",
            "f881c436 01000300 00000000 00000000",
        ]
        assert [value.hex(" ", 4) for value in values_as_stored(VARIABLE)] == [
            "6e54c420 01000001 00000000 00000003 00000017 0000006f 6e650200 00000600 00000b00 00000001 00000061 "
            "01000000 00000000 00000000",
            "79b43f9c 01000300 00000000 00000000 00000004 00000000 00000000 00000000",
        ]


class TestAllColumnsInTheKey:
    def test_a_row_is_only_a_head(self) -> None:
        codec, sums = RowCodec({FIRST: KEY_ONLY}), sums_of(3)
        values, hashes = codec.encode([], sums, FIRST)
        assert [len(value) for value in values.to_list()] == [8, 8, 8]
        found, found_hashes = codec.decode(values, sums, FIRST)
        assert (found, found_hashes.tolist()) == ([], hashes.tolist())
        assert len(set(hashes.tolist())) == 3

    def test_columns_added_later_are_null(self) -> None:
        codec, sums = RowCodec({FIRST: KEY_ONLY, SECOND: VARIABLE.schema}), sums_of(2)
        found, _ = codec.decode(codec.encode([], sums, FIRST)[0], sums, SECOND)
        assert [column.type for column in found] == VARIABLE.schema.types
        assert [column.to_pylist() for column in found] == [[None, None]] * 3

    def test_damage_is_detected(self) -> None:
        codec, sums = RowCodec({FIRST: KEY_ONLY}), sums_of(1)
        (value,) = codec.encode([], sums, FIRST)[0].to_list()
        for damaged in bit_flips(value):
            with pytest.raises(CorruptData):
                codec.decode(BinaryColumn.from_list([damaged]), sums, FIRST)


class TestSchemas:
    @given(record_batches(schemas(columns_max=5)), st.data())
    def test_rows_of_several_schemas_read_newer_columns_as_null(
        self, rows: pa.RecordBatch, data: st.DataObject
    ) -> None:
        widths = sorted(data.draw(st.lists(st.integers(0, rows.num_columns), min_size=2, max_size=2)))
        ids = dict(zip((FIRST, SECOND, THIRD), [*widths, rows.num_columns], strict=True))
        codec = RowCodec({id: pa.schema(list(rows.schema)[:width]) for id, width in ids.items()})
        written = data.draw(st.lists(st.sampled_from(list(ids)), min_size=len(rows), max_size=len(rows)))
        sums, values = sums_of(len(rows)), []
        for row, id in enumerate(written):
            its_columns = rows.slice(row, 1).columns[: ids[id]]
            values += codec.encode(its_columns, sums[row : row + 1], id)[0].to_list()
        for wanted, width in ids.items():
            found, _ = codec.decode(BinaryColumn.from_list(values), sums, wanted)
            assert [column.type for column in found] == rows.schema.types[:width]
            assert list(map(values_of, found)) == [
                [value if place < ids[id] else None for value, id in zip(column, written, strict=True)]
                for place, column in enumerate(contents(rows)[:width])
            ]

    def test_a_projection_may_select_only_columns_that_a_row_lacks(self) -> None:
        codec, sums = (
            RowCodec({FIRST: FIXED.schema, SECOND: pa.schema([*FIXED.schema, ("s", pa.string())])}),
            sums_of(2),
        )
        values, _ = codec.encode(FIXED.columns, sums, FIRST)
        assert codec.decode(values, sums, SECOND, ["s"])[0] == [pa.array([None, None], pa.string())]
        mixed = codec.decode(values, sums, SECOND, ["s", "n"])[0]
        assert [column.to_pylist() for column in mixed] == [[None, None], [1, None]]

    def test_an_unknown_schema_is_refused(self) -> None:
        values = values_as_stored(FIXED, SECOND)
        with pytest.raises(CorruptData):
            RowCodec({FIRST: FIXED.schema}).decode(BinaryColumn.from_list(values), sums_of(2), FIRST)


@pytest.mark.parametrize("rows", [FIXED, VARIABLE], ids=["fixed", "variable"])
class TestDamage:
    def test_every_flipped_bit_is_detected(self, rows: pa.RecordBatch) -> None:
        codec, sums = RowCodec({FIRST: rows.schema}), sums_of(len(rows))
        values = values_as_stored(rows)
        for row, value in enumerate(values):
            for damaged in bit_flips(value):
                with pytest.raises(CorruptData):
                    codec.decode(BinaryColumn.from_list([*values[:row], damaged, *values[row + 1 :]]), sums, FIRST)

    def test_a_value_under_another_key_is_detected(self, rows: pa.RecordBatch) -> None:
        codec, sums = RowCodec({FIRST: rows.schema}), sums_of(len(rows))
        values = values_as_stored(rows)
        with pytest.raises(CorruptData):
            codec.decode(BinaryColumn.from_list(values[::-1]), sums, FIRST)
        with pytest.raises(CorruptData):
            codec.decode(BinaryColumn.from_list(values), sums[::-1], FIRST)

    def test_a_value_that_is_too_short_or_too_long_is_detected(self, rows: pa.RecordBatch) -> None:
        codec, sums = RowCodec({FIRST: rows.schema}), sums_of(len(rows))
        values = values_as_stored(rows)
        for damaged in [*(values[0][:length] for length in range(len(values[0]))), values[0] + b"\x01" * 8]:
            with pytest.raises(CorruptData):
                codec.decode(BinaryColumn.from_list([damaged, values[1]]), sums, FIRST)
            with pytest.raises(CorruptData):
                codec.decode(BinaryColumn.from_list([damaged]), sums[:1], FIRST)

    def test_damage_in_unselected_columns_is_detected(self, rows: pa.RecordBatch) -> None:
        codec, sums = RowCodec({FIRST: rows.schema}), sums_of(len(rows))
        first, second = values_as_stored(rows)
        damaged = first[:-1] + bytes([first[-1] ^ 1])
        with pytest.raises(CorruptData):
            codec.decode(BinaryColumn.from_list([damaged, second]), sums, FIRST, [])

    def test_the_error_has_the_number_of_rows_and_the_first_one(self, rows: pa.RecordBatch) -> None:
        first, second = values_as_stored(rows)
        damaged = second[:6] + bytes([second[6] ^ 1]) + second[7:]
        with pytest.raises(CorruptData) as refused:
            verified(BinaryColumn.from_list([first, damaged]), sums_of(2))
        assert refused.value.where == {"rows": 1, "first": 1}
