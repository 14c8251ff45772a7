"""Python values, and scalars of numpy and Arrow, go into columns exactly or are refused."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.testing.strategies import FLOATS, INTEGERS
from logformat.errors import SchemaMismatch
from logformat.rows import intake
from logformat.rows.python_values import FEW
from tests.logformat.conversions import NUMBERS, UTC, exactly, taken_values
from tests.support.contents import values_of

STORED = st.sampled_from([*INTEGERS, *FLOATS, pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.binary(1)])
JUNK = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.integers(-9, 9), st.floats(), st.binary(max_size=2)),
    *(st.text(max_size=2), st.dates(), st.sampled_from([np.int8(1), np.float32(0.1), np.bool_(True), np.str_("x")])),
    *(st.just("\ud800"), st.just([1]), st.just({"a": 1})),
)


PYTHON_VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((kind, st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)) for kind in INTEGERS[:4]),
    *((kind, st.integers(0, 2**kind.bit_width - 1)) for kind in INTEGERS[4:]),
    (pa.float64(), st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)),
    (pa.float32(), st.floats(allow_nan=False, width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(10, 3), st.decimals(-9_999_999, 9_999_999, places=3) | st.integers(-9_999_999, 9_999_999)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.sampled_from([UTC, dt.timezone(dt.timedelta(hours=5))]))),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6))),
    (pa.list_(pa.int8()), st.lists(st.none() | st.integers(-128, 127), max_size=3)),
    (
        pa.struct([("x", pa.string()), ("y", pa.list_(pa.bool_()))]),
        st.fixed_dictionaries({"x": st.text(), "y": st.none() | st.lists(st.booleans(), max_size=2)}),
    ),
    (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(), st.none() | st.integers(0, 9)), max_size=3)),
]


class TestPython:
    @pytest.mark.parametrize(("kind", "values"), PYTHON_VALUES, ids=[str(kind) for kind, _ in PYTHON_VALUES])
    @given(data=st.data())
    def test_values_of_a_type_survive_a_round_trip(
        self, kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
    ) -> None:
        rows = data.draw(st.lists(st.none() | values, max_size=4))
        found = taken_values(rows, kind)
        assert found.type == kind
        assert found.to_pylist() == rows

    @given(st.data())
    def test_integers_must_convert_exactly(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(NUMBERS))
        numpy = st.sampled_from([np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
        near = st.sampled_from([2**bits + more for bits in (7, 8, 11, 24, 53, 63, 64) for more in (-1, 0, 1)])
        number = data.draw(near | st.integers(-(2**65), 2**65))
        number = data.draw(st.sampled_from([number, -number]))
        info = np.iinfo(data.draw(numpy))
        value = info.dtype.type(number) if data.draw(st.booleans()) and info.min <= number <= info.max else number
        with suppress(SchemaMismatch):
            (found,) = taken_values([value], kind).to_pylist()
            assert exactly(found) == number

    @given(st.floats(allow_nan=False), st.sampled_from(FLOATS))
    def test_a_float_becomes_the_nearest_and_never_infinite(self, number: float, kind: pa.DataType) -> None:
        with np.errstate(over="ignore"):
            nearest = kind.to_pandas_dtype()(number)
        if np.isfinite(number) and not np.isfinite(nearest):
            with pytest.raises(SchemaMismatch):
                taken_values([number], kind)
        else:
            assert values_of(taken_values([number], kind))[0] == values_of(pa.array([nearest], kind))[0]

    @given(st.lists(st.lists(JUNK, min_size=2, max_size=2), min_size=1, max_size=2), st.lists(STORED, min_size=2))
    def test_few_rows_convert_like_many(self, values: list[list[Any]], kinds: list[pa.DataType]) -> None:
        fields = [pa.field(name, kind, metadata={"of": name}) for name, kind in zip("ab", kinds, strict=False)]
        schema = pa.schema(fields, metadata={"made": "here"})
        few = [dict(zip(schema.names, row, strict=True)) for row in values]
        many = few * (FEW + 1)

        def taken(rows: list[dict[str, Any]]) -> Any:
            try:
                (batch,) = intake.record_batches(rows, schema)
            except SchemaMismatch as error:
                return error.where["column"], error.where["expected"]
            batch.validate(full=True)
            assert batch.schema.equals(schema, check_metadata=True)
            return list(map(values_of, batch.slice(0, len(few)).columns))

        assert taken(few) == taken(many)

    def test_a_map_may_be_a_dict(self) -> None:
        found = taken_values([{"k": 1}, [("k", 2), ("k", 3)], None, {}], pa.map_(pa.string(), pa.int8()))
        assert found.to_pylist() == [[("k", 1)], [("k", 2), ("k", 3)], None, []]

    @pytest.mark.parametrize(
        ("kind", "value", "found"),
        [
            (pa.decimal128(5, 2), np.int64(5), Decimal(5)),
            (pa.float64(), 2**70, 2.0**70),
            (pa.float64(), np.float32(0.1), float(np.float32(0.1))),
            (pa.bool_(), np.bool_(True), True),
            (pa.binary(), bytearray(b"x"), b"x"),
            (pa.list_(pa.int8()), np.array([1, 2]), [1, 2]),
            (pa.list_(pa.int8()), (1, 2), [1, 2]),
            (pa.timestamp("us"), np.datetime64(1, "s"), dt.datetime(1970, 1, 1, 0, 0, 1)),
            (pa.duration("us"), np.timedelta64(1, "s"), dt.timedelta(seconds=1)),
            (pa.timestamp("s"), dt.datetime(9999, 12, 31), dt.datetime(9999, 12, 31)),
        ],
        ids=str,
    )
    def test_values_of_similar_types_are_accepted(self, kind: pa.DataType, value: Any, found: Any) -> None:
        assert taken_values([value, None], kind).to_pylist() == [found, None]

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            *((kind, True) for kind in (pa.int8(), pa.float64(), pa.decimal128(5), pa.string())),
            *((kind, "1") for kind in (pa.int8(), pa.float64(), pa.decimal128(5), pa.bool_(), pa.binary())),
            *((kind, 1) for kind in (pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("s"))),
            (pa.duration("s"), 1),
            (pa.binary(1), "1"),
            *((kind, 1.0) for kind in (pa.int8(), pa.decimal128(5), pa.string(), pa.bool_())),
            (pa.int8(), 128),
            (pa.uint8(), -1),
            (pa.int64(), 2**63),
            (pa.float64(), 2**53 + 1),
            (pa.float64(), np.uint64(2**64 - 1)),
            (pa.float32(), 2**24 + 1),
            (pa.float16(), 2**11 + 1),
            (pa.float32(), 1e300),
            (pa.float16(), 1e5),
            (pa.float64(), Decimal("1.5")),
            (pa.string(), b"x"),
            (pa.string(), "\ud800"),
            (pa.binary(3), b"xx"),
            (pa.decimal128(5, 2), Decimal("1.001")),
            (pa.decimal128(5, 2), Decimal("1000")),
            (pa.decimal128(5, 2), Decimal("NaN")),
            (pa.date32(), dt.datetime(2020, 1, 1)),
            (pa.date32(), "2020-01-01"),
            (pa.timestamp("us"), dt.date(2020, 1, 1)),
            (pa.timestamp("us"), dt.datetime(2020, 1, 1, tzinfo=UTC)),
            (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 1)),
            (pa.timestamp("ms"), dt.datetime(2020, 1, 1, microsecond=1)),
            (pa.timestamp("ns"), dt.datetime(1, 1, 1)),
            (pa.time32("s"), dt.time(1, 2, 3, 4)),
            (pa.time64("us"), dt.time(1, 2, 3, tzinfo=UTC)),
            (pa.duration("s"), dt.timedelta(microseconds=1)),
            (pa.duration("us"), dt.timedelta.max),
            (pa.timestamp("us"), np.datetime64("NaT", "us")),
            (pa.timestamp("us"), np.datetime64(1, "ns")),
            (pa.duration("us"), np.timedelta64("NaT", "us")),
            (pa.int64(), np.timedelta64(1, "s")),
            (pa.list_(pa.int8()), "12"),
            (pa.list_(pa.int8()), b"12"),
            (pa.list_(pa.int8()), {"x": 1}),
            (pa.list_(pa.int8()), 1),
            (pa.list_(pa.int8()), {1, 2}),
            (pa.list_(pa.int8()), np.array(1)),
            (pa.list_(pa.int8()), [1, "2"]),
            (pa.list_(pa.int8()), [300]),
            (pa.list_(pa.binary(1)), ["x"]),
            (pa.struct([("x", pa.int8())]), {}),
            (pa.struct([("x", pa.int8())]), {"x": 1, "y": 2}),
            (pa.struct([("x", pa.int8())]), [("x", 1)]),
            (pa.struct([("x", pa.int8())]), {"x": 300}),
            (pa.map_(pa.string(), pa.int8()), {1: 1}),
            (pa.map_(pa.string(), pa.int8()), {"k": 300}),
            (pa.map_(pa.string(), pa.int8()), [("k", 1, 2)]),
            (pa.map_(pa.string(), pa.string()), ["kv"]),
        ],
        ids=str,
    )
    def test_values_that_do_not_fit_are_refused(self, kind: pa.DataType, value: Any) -> None:
        schema = pa.schema([("good", pa.int8()), ("bad", kind)])
        with pytest.raises(SchemaMismatch) as refused:
            intake.one_batch([{"good": 1, "bad": None}, {"good": 2, "bad": value}], schema)
        assert refused.value.where["column"] == "bad"
        assert refused.value.where["expected"] == kind

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (pa.binary(), [b"x", "y"]),
            (pa.string(), ["x", b"y"]),
            (pa.date32(), [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)]),
            (pa.timestamp("us"), [dt.datetime(2020, 1, 1, 5), dt.date(2020, 1, 1)]),
            (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=UTC), dt.datetime(2020, 1, 1)]),
            (pa.timestamp("us"), [dt.datetime(2020, 1, 1), np.datetime64(1, "ns")]),
            (pa.timestamp("us"), [dt.datetime(2020, 1, 1), np.datetime64("NaT", "us")]),
            (pa.time64("us"), [dt.time(1), dt.time(1, tzinfo=UTC)]),
            (pa.bool_(), [True, 1]),
            (pa.int8(), [1, True]),
            (pa.float64(), [1.5, True]),
            (pa.list_(pa.int8()), [[1], "1"]),
        ],
        ids=str,
    )
    def test_one_value_of_a_wrong_type_among_good_ones_is_refused(self, kind: pa.DataType, values: list[Any]) -> None:
        for order in (values, values[::-1]):
            with pytest.raises(SchemaMismatch) as refused:
                taken_values(order, kind)
            assert refused.value.where["column"] == "a"


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_scalars_of_arrow_in_rows_are_taken_as_what_they_hold(count: int) -> None:
    """As Arrow data of their type is taken, beside Python values or alone, also within lists and structs."""
    inner = pa.struct([("x", pa.int64())])
    fine = pa.timestamp("ns", "UTC")
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("t", fine), ("l", pa.list_(pa.int8())), ("s", inner)])
    row = {
        "a": pa.scalar(7, pa.int8()),
        "b": pa.scalar("x"),
        "t": pa.scalar(1_700_000_000_000_000_001, fine),
        "l": [pa.scalar(1), 2, None],
        "s": pa.scalar({"x": 3}, inner),
    }
    other: dict[str, Any] = {"a": pa.scalar(None), "b": pa.scalar(None, pa.string()), "t": None}
    other |= {"l": pa.scalar([1], pa.list_(pa.int64())), "s": {"x": pa.scalar(4)}}
    plain = {"a": 1, "b": "y", "t": None, "l": None, "s": None}
    found = intake.one_batch([row, other, plain] * count, schema)
    assert found.column("a").to_pylist() == [7, None, 1] * count
    assert found.column("b").to_pylist() == ["x", None, "y"] * count
    assert found.column("t").cast(pa.int64()).to_pylist() == [1_700_000_000_000_000_001, None, None] * count
    assert found.column("l").to_pylist() == [[1, 2, None], [1], None] * count
    assert found.column("s").to_pylist() == [{"x": 3}, {"x": 4}, None] * count


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (pa.scalar(300), pa.int8()),
        (pa.scalar("1"), pa.int64()),
        (pa.scalar(0.5), pa.int64()),
        (pa.scalar(True), pa.int8()),
    ],
)
def test_scalars_of_arrow_that_do_not_fit_are_refused(value: pa.Scalar, kind: pa.DataType) -> None:
    for values in ([value], [value, None, 1]):
        with pytest.raises(SchemaMismatch, match="column=a"):
            taken_values(values, kind)
