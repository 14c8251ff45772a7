from __future__ import annotations

from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kvstore.testing.strategies import SCALAR_TYPES, rows as record_batches
from logformat.binary_column import BinaryColumn
from logformat.errors import CorruptData
from logformat.rows.record import RecordCodec
from tests.logformat.damage import bit_flips, cuts
from tests.support.contents import contents, values_of
from tests.support.processes import ran


def records_of(rows: pa.RecordBatch) -> list[bytes]:
    return RecordCodec(rows.schema.types).encode_whole(rows.columns).to_list()


def decoded(records: list[bytes], types: list[pa.DataType]) -> list[pa.Array]:
    flat = BinaryColumn.from_list(records)
    return RecordCodec(types).decode(flat.flat, flat.offsets[:-1], flat.offsets[1:])


@given(record_batches())
def test_rows_of_any_schema_survive_a_round_trip(rows: pa.RecordBatch) -> None:
    found = pa.RecordBatch.from_arrays(decoded(records_of(rows), rows.schema.types), schema=rows.schema)
    found.validate(full=True)
    assert contents(found) == contents(rows)


@settings(max_examples=settings().max_examples // 5)
@given(record_batches(pa.schema([(f"c{i}", kind) for i, kind in enumerate(SCALAR_TYPES)])))
def test_every_type_without_children_survives_a_round_trip(rows: pa.RecordBatch) -> None:
    assert list(map(values_of, decoded(records_of(rows), SCALAR_TYPES))) == contents(rows)


@given(record_batches())
def test_a_record_does_not_depend_on_other_rows(rows: pa.RecordBatch) -> None:
    alone = [records_of(rows.slice(row, 1))[0] for row in range(len(rows))]
    assert records_of(rows) == alone


@given(record_batches(rows_max=6))
def test_bytes_are_equal_exactly_if_rows_are(rows: pa.RecordBatch) -> None:
    records = records_of(rows)
    values = list(zip(*contents(rows), strict=True))
    for row, other in combinations(range(len(rows)), 2):
        assert (records[row] == records[other]) == (values[row] == values[other])


@given(record_batches(), st.binary(min_size=1, max_size=9))
def test_records_may_lie_between_other_bytes(rows: pa.RecordBatch, between: bytes) -> None:
    strings = [string for record in records_of(rows) for string in (between, record)]
    flat = BinaryColumn.from_list([*strings, between])
    starts, ends = flat.offsets[1:-1:2], flat.offsets[2::2]
    found = RecordCodec(rows.schema.types).decode(flat.flat, starts, ends)
    assert list(map(values_of, found)) == contents(rows)


NESTED = pa.schema(
    [
        ("n", pa.int16()),
        ("s", pa.string()),
        ("l", pa.list_(pa.struct([("x", pa.binary()), ("y", pa.list_(pa.int8()))]))),
        pa.field("r", pa.struct([pa.field("z", pa.int8(), nullable=False)])),
    ]
)
NESTED_ROWS = pa.RecordBatch.from_pylist(
    [
        {"n": 1, "s": "one", "l": [{"x": b"a", "y": [1, None]}, None], "r": {"z": 1}},
        {"n": None, "s": None, "l": None, "r": None},
    ],
    schema=NESTED,
)


def decodes_or_is_refused(records: list[bytes]) -> None:
    try:
        found = decoded(records, NESTED.types)
    except CorruptData:
        return
    assert [(len(column), column.type) for column in found] == [(len(records), kind) for kind in NESTED.types]


class TestDamage:
    """Checksums detect damage first; such bytes reach the codec only under a false checksum."""

    @pytest.mark.parametrize("row", [0, 1])
    def test_a_record_with_any_bit_flipped_is_decoded_or_refused(self, row: int) -> None:
        records = records_of(NESTED_ROWS)
        for damaged in bit_flips(records[row]):
            decodes_or_is_refused([records[0], damaged, records[1]])

    def test_a_truncated_record_is_refused(self) -> None:
        records = records_of(NESTED_ROWS)
        for damaged in cuts(records[0]):
            with pytest.raises(CorruptData):
                decoded([damaged, *records], NESTED.types)
            with pytest.raises(CorruptData):
                decoded([*records, damaged], NESTED.types)

    def test_a_null_key_of_a_map_is_refused(self) -> None:
        # In another process: pyarrow crashes the process in which a map gets a null key.
        program = """if True:
            import pyarrow as pa
            from logformat.errors import CorruptData
            from logformat.rows.record import RecordCodec

            entry = pa.struct([("key", pa.string()), ("value", pa.int8())])
            column = pa.array([[{"key": None, "value": 1}]], pa.list_(entry))
            records = RecordCodec([column.type]).encode_whole([column])
            try:
                RecordCodec([pa.map_(pa.string(), pa.int8())]).decode(
                    records.flat, records.offsets[:-1], records.offsets[1:]
                )
            except CorruptData:
                print("refused")
        """
        done = ran(program)
        assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr

    @given(st.lists(st.binary(max_size=60), max_size=3))
    def test_any_bytes_are_decoded_or_refused(self, records: list[bytes]) -> None:
        decodes_or_is_refused(records)


def test_the_encoding_of_records_is_frozen() -> None:
    rows = pa.record_batch([pa.array([1, None], pa.int16()), ["one", None], [["a", None], None]], names=["n", "s", "l"])
    assert [record.hex(" ", -4) for record in records_of(rows)] == [
        "00010003 00000017 0000006f 6e650200 00000600 00000b00 00000001 00000061 01000000 00",
        "07000000 00000000 000000",
    ]


def test_the_fixed_part_is_padded_if_no_column_is_variable() -> None:
    head = [("checksum", "<u4"), ("schema_id", "<u2")]
    assert RecordCodec([pa.int16()], head, aligned=True).dtype.itemsize == 16
    assert RecordCodec([pa.bool_()], head, aligned=True).dtype.itemsize == 8
    assert RecordCodec([], head, aligned=True).dtype.itemsize == 8
    fixed, variable = RecordCodec([pa.int16()], head, aligned=True).encode([pa.array([-1], pa.int16())], 1)
    assert (fixed.tobytes(), variable) == (bytes(7) + b"\xff\xff" + bytes(7), [])
    assert fixed.dtype.names == ("checksum", "schema_id", "nulls", "c0")
