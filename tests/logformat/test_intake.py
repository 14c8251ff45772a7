from __future__ import annotations

import datetime as dt
import math
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from logformat.errors import SchemaMismatch
from logformat.rows import intake
from logformat.rows.python_values import FEW
from logformat.rows.schema import normalise
from tests.support.strategies import (
    FLOATS,
    INTEGERS,
    columns,
    contents,
    foreign_types,
    record_batches,
    schemas,
    values_of,
)

ABC = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
NUMBERS = [*INTEGERS, *FLOATS, pa.decimal128(5), pa.decimal128(20, 3), pa.decimal128(38, 30), pa.decimal128(4, -2)]
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
UTC = dt.UTC
STORED = st.sampled_from([*INTEGERS, *FLOATS, pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.binary(1)])
JUNK = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.integers(-9, 9), st.floats(), st.binary(max_size=2)),
    *(st.text(max_size=2), st.dates(), st.sampled_from([np.int8(1), np.float32(0.1), np.bool_(True), np.str_("x")])),
    *(st.just("\ud800"), st.just([1]), st.just({"a": 1})),
)


class Stream:
    """Has only the Arrow PyCapsule interface."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


class Columns:
    """The same for one batch."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_array__(requested_schema)


def taken(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of Arrow data, converted to the table's type."""
    (found,) = intake.one_batch(pa.record_batch([column], names=["a"]), pa.schema([("a", kind)])).columns
    found.validate(full=True)
    return found


def taken_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The same for Python values."""
    (found,) = intake.one_batch([{"a": value} for value in values], pa.schema([("a", kind)])).columns
    found.validate(full=True)
    return found


def exactly(value: Any) -> Any:
    """A number in a form that equals only the same number."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return Fraction(value if isinstance(value, Decimal) else value.item() if isinstance(value, np.generic) else value)


class TestForms:
    ROWS = [{"a": 1, "b": "x", "c": 0.5}, {"a": None, "b": None, "c": None}]  # noqa: RUF012
    BATCH = pa.RecordBatch.from_pylist(ROWS, schema=ABC)

    @pytest.mark.parametrize(
        "data",
        [
            *(ROWS, tuple(ROWS), BATCH, pa.Table.from_batches([BATCH]), pa.Table.from_batches([BATCH[:1], BATCH[1:]])),
            *(BATCH.select(["c", "a", "b"]), [{"c": 0.5, "b": "x", "a": 1}, ROWS[1]], BATCH.to_struct_array()),
            *(Columns(BATCH), Stream(BATCH), Stream(pa.Table.from_batches([BATCH, BATCH[:0]]))),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_rows_are_accepted_in_many_forms(self, data: Any) -> None:
        found = intake.one_batch(data, ABC)
        assert (found.schema, found.to_pylist()) == (ABC, self.ROWS)

    def test_a_dict_is_one_row(self) -> None:
        assert intake.one_batch(self.ROWS[0], ABC).to_pylist() == self.ROWS[:1]

    def test_batches_stay_separate(self) -> None:
        batches = list(intake.record_batches(pa.Table.from_batches([self.BATCH, self.BATCH]), ABC))
        assert batches == [self.BATCH, self.BATCH]

    @pytest.mark.parametrize("data", [[], ABC.empty_table(), BATCH[:0]], ids=lambda data: type(data).__name__)
    def test_no_rows_are_an_empty_batch(self, data: Any) -> None:
        assert intake.one_batch(data, ABC) == intake.empty(ABC) == pa.RecordBatch.from_pylist([], schema=ABC)

    @given(schemas())
    def test_any_schema_has_an_empty_batch(self, schema: pa.Schema) -> None:
        assert (intake.empty(schema).schema, intake.empty(schema).num_rows) == (schema, 0)

    @pytest.mark.parametrize(
        "data",
        [
            *(None, 7, "rows", b"rows", "", b"", [1], [[1, "x", 0.5]], iter([{"a": 1}]), {1, 2}),
            *(pa.array([1]), pa.chunked_array([[1]]), pa.scalar(1), pa.array([ROWS[0], None])),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_other_data_is_refused(self, data: Any) -> None:
        with pytest.raises(SchemaMismatch):
            intake.one_batch(data, ABC)


class Index:
    """Like a pandas index: not Arrow data, but convertible to a list."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def tolist(self) -> list[Any]:
        return self._values


class TestKeys:
    ONE = pa.schema([pa.field("k", pa.int32(), False)])
    TWO = pa.schema([pa.field("k", pa.int32(), False), pa.field("s", pa.string(), False)])

    @pytest.mark.parametrize(
        "keys",
        [
            [1, 2],
            [(1,), {"k": 2}],
            [pa.scalar(1), pa.scalar({"k": 2})],
            np.array([1, 2]),
            Index([1, 2]),
            pa.array([1, 2]),
            pa.chunked_array([[1], [2]]),
            Columns(pa.array([1, 2], pa.int8())),
            Stream(pa.chunked_array([[1], [2]])),
            Stream(pa.chunked_array([pa.array([1, 2]).dictionary_encode()])),
            pa.record_batch({"k": [1, 2]}),
            pa.table({"k": [1, 2]}).to_reader(),
            Stream(pa.table({"k": [1, 2]})),
        ],
    )
    def test_a_single_column_key_is_accepted_in_every_form(self, keys: Any) -> None:
        assert intake.key_rows(keys, self.ONE).equals(pa.record_batch([pa.array([1, 2], pa.int32())], schema=self.ONE))

    @pytest.mark.parametrize(
        "keys",
        [
            (1, "a"),
            [[1, "a"]],
            {"s": "a", "k": 1},
            Index([(1, "a")]),
            pa.scalar({"s": "a", "k": 1}),
            pa.table({"s": ["a"], "k": [1]}),
            Columns(pa.record_batch({"s": ["a"], "k": [1]})),
            pa.array([{"s": "a", "k": 1}]),
        ],
    )
    def test_a_two_column_key_is_accepted_in_every_form(self, keys: Any) -> None:
        assert intake.key_rows(keys, self.TWO).to_pylist() == [{"k": 1, "s": "a"}]

    def test_a_numpy_value_is_one_key(self) -> None:
        times = pa.schema([pa.field("t", pa.timestamp("ns"), False)])
        assert intake.key_rows(np.datetime64(17, "ns"), times).column(0).cast(pa.int64()).to_pylist() == [17]
        data = pa.schema([pa.field("b", pa.binary(), False)])
        assert intake.key_rows(memoryview(b"ab"), data).to_pylist() == [{"b": b"ab"}]

    @pytest.mark.parametrize(
        ("keys", "schema", "words"),
        [
            (pa.array([1]), TWO, "several columns"),
            (Stream(pa.chunked_array([["a"]])), TWO, "several columns"),
            (pa.array(["a"]), ONE, "different type"),
            (pa.array([None], pa.int32()), ONE, "not allow nulls"),
            (pa.table({"n": [1]}), ONE, "column is missing"),
            (pa.table({"k": [1], "n": [1]}), ONE, "no such column"),
            ([pa.scalar("a")], ONE, "different type"),
            ((1, 2), ONE, "one value for each"),
            ({1, 2}, ONE, "different type"),
        ],
    )
    def test_data_that_is_not_keys_is_refused(self, keys: Any, schema: pa.Schema, words: str) -> None:
        with pytest.raises(SchemaMismatch, match=words):
            intake.key_rows(keys, schema)


class TestNames:
    @pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "d"], ["a", "b", "c", "d"], ["A", "b", "c"]])
    def test_exactly_the_tables_columns_must_be_given(self, names: list[str]) -> None:
        with pytest.raises(SchemaMismatch):
            intake.one_batch([{"a": 1, "b": "x", "c": 0.5}, dict.fromkeys(names)], ABC)
        with pytest.raises(SchemaMismatch):
            intake.one_batch(pa.table({name: [1] for name in names}), ABC)

    def test_the_error_names_what_is_missing_or_unknown(self) -> None:
        with pytest.raises(SchemaMismatch) as refused:
            intake.one_batch({"a": 1, "d": 2}, ABC)
        assert refused.value.where["missing"] == ["b", "c"]
        with pytest.raises(SchemaMismatch) as refused:
            intake.one_batch({"a": 1, "b": "x", "c": 0.5, "d": 2}, ABC)
        assert refused.value.where["unknown"] == ["d"]

    def test_a_column_given_twice_is_refused(self) -> None:
        rows = pa.record_batch([[1], ["x"], [0.5], [2]], names=["a", "b", "c", "a"])
        with pytest.raises(SchemaMismatch):
            intake.one_batch(rows, ABC)


class TestNulls:
    SCHEMA = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])

    @pytest.mark.parametrize("arrow", [False, True], ids=["python", "arrow"])
    def test_nulls_are_allowed_only_in_nullable_columns(self, arrow: bool) -> None:
        def given_as(rows: list[dict[str, Any]]) -> Any:
            return (
                pa.RecordBatch.from_pylist(rows, pa.schema([("a", pa.int64()), ("b", pa.int64())])) if arrow else rows
            )

        good = [{"a": 1, "b": None}]
        assert intake.one_batch(given_as(good), self.SCHEMA).to_pylist() == good
        with pytest.raises(SchemaMismatch) as refused:
            intake.one_batch(given_as([*good, {"a": None, "b": 1}]), self.SCHEMA)
        assert (refused.value.where["column"], refused.value.where["nulls"]) == ("a", 1)

    def test_the_caller_may_choose_the_columns_without_nulls(self) -> None:
        rows = pa.record_batch([[None, 1], [2, None]], names=["a", "b"])
        schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
        assert intake.conform(rows, self.SCHEMA, not_null=[]).num_rows == 2
        with pytest.raises(SchemaMismatch) as refused:
            intake.conform(rows, schema, not_null=["b"])
        assert refused.value.where["column"] == "b"

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (pa.struct([pa.field("x", pa.int8(), nullable=False)]), {"x": None}),
            (pa.list_(pa.field("item", pa.int8(), nullable=False)), [1, None]),
            (pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)), {"k": None}),
            (pa.map_(pa.string(), pa.int8()), [(None, 1)]),
        ],
        ids=["struct", "list", "map", "key"],
    )
    def test_nulls_inside_a_value_are_allowed_only_where_nullable(self, kind: pa.DataType, value: Any) -> None:
        with pytest.raises(SchemaMismatch) as refused:
            taken_values([None, value], kind)
        assert refused.value.where["column"] == "a"

    @pytest.mark.parametrize(
        ("column", "kind"),
        [
            (pa.array([{"x": None}]), pa.struct([pa.field("x", pa.int8(), nullable=False)])),
            *(
                (pa.array([{"x": None}], kind), kind)
                for kind in [pa.struct([pa.field("x", pa.int8(), nullable=False)])]
            ),
            *((pa.array([[[None]]], kind), kind) for kind in [pa.list_(pa.list_(pa.field("x", pa.int8(), False)))]),
            (pa.array([[None]]), pa.list_(pa.field("item", pa.int8(), nullable=False))),
            (
                pa.array([{"k": None}], pa.map_(pa.string(), pa.int8())),
                pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)),
            ),
        ],
        ids=["struct", "same struct", "same lists", "list", "map"],
    )
    def test_nulls_inside_an_arrow_value_are_allowed_only_where_nullable(
        self, column: pa.Array, kind: pa.DataType
    ) -> None:
        with pytest.raises(SchemaMismatch) as refused:
            taken(column, kind)
        assert refused.value.where["column"] == "a"

    def test_a_dictionary_of_map_keys_must_not_have_a_null(self) -> None:
        keys = pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), pa.array(["k", None]))
        column = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), keys, pa.array([1]))
        with pytest.raises(SchemaMismatch):
            taken(column, pa.map_(pa.string(), pa.int64()))

    def test_a_null_struct_needs_no_fields(self) -> None:
        kind = pa.struct([pa.field("x", pa.int8(), nullable=False)])
        assert taken_values([None, {"x": 1}], kind).to_pylist() == [None, {"x": 1}]


class TestArrow:
    @given(record_batches())
    def test_rows_of_the_tables_schema_are_used_unchanged(self, rows: pa.RecordBatch) -> None:
        for data in (rows, Stream(rows), Columns(rows)):
            found = intake.one_batch(data, rows.schema)
            assert found.schema == rows.schema
            assert contents(found) == contents(rows)

    @given(record_batches(schemas(foreign_types(), columns_max=1), rows_max=3))
    def test_rows_of_a_foreign_schema_hold_the_same_in_the_stored_one(self, rows: pa.RecordBatch) -> None:
        stored = normalise(rows.schema)
        found = intake.one_batch(rows, stored)
        found.validate(full=True)
        assert found.schema == stored
        assert contents(found) == contents(rows)

    LISTS = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 1], pa.int32()),
        pa.array([1, 2, 0], pa.int32()),
        pa.array([1, 2, 3]),
        mask=pa.array([False, False, True]),
    )

    @pytest.mark.parametrize(
        "column",
        [
            LISTS,
            LISTS.slice(1),
            pa.array([[3], None, [1, 2]], pa.large_list_view(pa.int64())),
            pa.StructArray.from_arrays([LISTS], names=["x"]),
            pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), LISTS),
            pa.ListViewArray.from_arrays(pa.array([1, 0], pa.int32()), pa.array([2, 1], pa.int32()), LISTS),
            pa.MapArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array(["a", "b", "c"]), LISTS),
        ],
        ids=["", "slice", "large", "in struct", "in list", "in list view", "in map"],
    )
    def test_list_views_with_nulls_become_lists(self, column: pa.Array) -> None:
        found = taken(column, normalise(pa.schema([("a", column.type)])).field("a").type)
        assert values_of(found) == values_of(column)

    @pytest.mark.parametrize(
        "values",
        [
            pa.array(["x", "y"]),
            pa.array([1, 2], pa.int16()),
            pa.array(["x", "y"], pa.large_string()),
            pa.array(["x", "y"], pa.string_view()),
            pa.array([[1], []]),
            pa.array([{"x": 1}, {"x": 2}]),
        ],
        ids=lambda values: str(values.type),
    )
    def test_dictionaries_become_their_values(self, values: pa.Array) -> None:
        column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), values)
        found = taken(column, normalise(pa.schema([("a", column.type)])).field("a").type)
        assert values_of(found) == values_of(column)

    @given(st.data())
    def test_a_number_of_another_type_must_convert_exactly(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(NUMBERS).flatmap(lambda kind: columns(kind, 3)))
        stored = data.draw(st.sampled_from(NUMBERS))
        with suppress(SchemaMismatch):
            found = taken(column, stored)
            assert list(map(exactly, found.to_pylist())) == list(map(exactly, column.to_pylist()))

    @pytest.mark.parametrize("kind", [pa.timestamp, pa.duration])
    @given(data=st.data(), written=st.sampled_from([*UNITS]), stored=st.sampled_from([*UNITS]))
    def test_a_time_of_another_unit_must_convert_exactly(
        self, kind: Any, data: st.DataObject, written: str, stored: str
    ) -> None:
        column = data.draw(columns(kind(written), 2) | st.just(pa.array([10**9, -(10**9)], kind(written))))
        with suppress(SchemaMismatch):
            found = taken(column, kind(stored))
            assert [None if time is None else time * UNITS[stored] for time in values_of(found)] == [
                None if time is None else time * UNITS[written] for time in values_of(column)
            ]

    @pytest.mark.parametrize(
        ("column", "kind", "values"),
        [
            (pa.nulls(2), pa.int64(), [None, None]),
            (pa.nulls(1), pa.map_(pa.string(), pa.struct([("x", pa.list_(pa.int8()))])), [None]),
            (pa.array([[None]]), pa.list_(pa.decimal128(5, 2)), [[None]]),
            (pa.array([300]), pa.int16(), [300]),
            (pa.array([2**53], pa.uint64()), pa.float64(), [2.0**53]),
            (pa.array([-(2**63), 2**60]), pa.float64(), [-(2.0**63), 2.0**60]),
            (pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([1, 300])), pa.int8(), [1]),
            (pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.nulls(0)), pa.int8(), [None]),
            (pa.array([1.5], pa.float16()), pa.float64(), [1.5]),
            (pa.array([1.5, None, math.inf]), pa.float16(), [1.5, None, math.inf]),
            (pa.array([[0.5]], pa.list_(pa.field("item", pa.float32(), False))), pa.list_(pa.float16()), [[0.5]]),
            (pa.array([b"123", None]), pa.binary(3), [b"123", None]),
            (pa.array([b"123"], pa.binary(3)), pa.binary(), [b"123"]),
            (pa.array([Decimal(2**64 - 1)], pa.decimal128(20)), pa.uint64(), [2**64 - 1]),
            (pa.array([Decimal("1.50")], pa.decimal64(9, 2)), pa.decimal128(4, 1), [Decimal("1.5")]),
            (pa.array([86_400_000], pa.date64()), pa.date32(), [dt.date(1970, 1, 2)]),
            (pa.array([1], pa.time32("s")), pa.time64("us"), [dt.time(0, 0, 1)]),
            (
                pa.array([0], pa.timestamp("s", "Europe/Berlin")),
                pa.timestamp("ms", "UTC"),
                [dt.datetime(1970, 1, 1, tzinfo=UTC)],
            ),
            (pa.array([[300]]), pa.list_(pa.int16()), [[300]]),
            (
                pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8(), keys_sorted=True)),
                pa.map_(pa.string(), pa.int8()),
                [[("k", 1)]],
            ),
            (pa.array([{"x": 300}]), pa.struct([("x", pa.int16())]), [{"x": 300}]),
            (
                pa.array([[("k", 300)]], pa.map_(pa.large_string(), pa.int64())),
                pa.map_(pa.string(), pa.int16()),
                [[("k", 300)]],
            ),
        ],
        ids=str,
    )
    def test_types_of_the_same_values_are_accepted(
        self, column: pa.Array, kind: pa.DataType, values: list[Any]
    ) -> None:
        found = taken(column, kind)
        assert (found.type, found.to_pylist()) == (kind, values)

    @pytest.mark.parametrize(
        ("column", "kind"),
        [
            (pa.array([300]), pa.int8()),
            (pa.array([-1]), pa.uint64()),
            (pa.array([2**53 + 1]), pa.float64()),
            (pa.array([2**63 - 1]), pa.float64()),
            (pa.array([2**64 - 1], pa.uint64()), pa.float32()),
            (pa.array([2**24 + 1]), pa.float32()),
            (pa.array([70_000]), pa.float16()),
            (pa.RunEndEncodedArray.from_arrays(pa.array([1]), pa.array(["x"])), pa.string()),
            (pa.array([b"x" * 16], pa.binary(16)).cast(pa.uuid()), pa.binary(16)),
            (pa.array([2**11 + 1]), pa.float16()),
            (pa.array([1.5]), pa.float32()),
            (pa.array([1.0]), pa.int64()),
            (pa.array([1]), pa.bool_()),
            (pa.array([True]), pa.int8()),
            (pa.array([1]), pa.string()),
            (pa.array(["1"]), pa.int64()),
            (pa.array(["1"]), pa.binary()),
            (pa.array([b"1"]), pa.string()),
            (pa.array([b"123"]), pa.binary(4)),
            (pa.array([b"123"], pa.binary(3)), pa.binary(4)),
            (pa.array([0.1], pa.float32()), pa.float16()),
            (pa.array([[0.5, 0.5, 0.1, 0.5]]), pa.list_(pa.float16())),
            (pa.array([1e9, 1.0]), pa.float16()),
            (pa.array([Decimal(2**64)]), pa.uint64()),
            (pa.array([Decimal("1.0")]), pa.uint64()),
            (pa.array(["2020-01-01"]), pa.date32()),
            (pa.array([dt.date(2020, 1, 1)]), pa.timestamp("s")),
            (pa.array([dt.datetime(2020, 1, 1)]), pa.date32()),
            (pa.array([0], pa.timestamp("s")), pa.timestamp("s", "UTC")),
            (pa.array([0], pa.timestamp("s", "UTC")), pa.timestamp("s")),
            (pa.array([1], pa.timestamp("us")), pa.timestamp("ms")),
            (pa.array([2**62], pa.timestamp("s")), pa.timestamp("ns")),
            (pa.array([1], pa.time64("ns")), pa.time32("s")),
            (pa.array([1], pa.int64()), pa.timestamp("s")),
            (pa.array([1], pa.int64()), pa.decimal128(5)),
            (pa.array([Decimal("1.25")]), pa.decimal128(5, 1)),
            (pa.array([Decimal("123.25")]), pa.decimal128(3, 2)),
            (pa.array([Decimal("1.25")]), pa.float64()),
            (pa.array([[300]]), pa.list_(pa.int8())),
            (pa.array([{"x": 300}]), pa.struct([("x", pa.int8())])),
            (pa.array([{"x": 1, "y": 2}]), pa.struct([("x", pa.int64())])),
            (pa.array([{"x": 1}]), pa.struct([("x", pa.int64()), ("y", pa.int64())])),
            (pa.array([{"y": 1}]), pa.struct([("x", pa.int64())])),
            (pa.array([{"x": 1}]), pa.map_(pa.string(), pa.int64())),
            (pa.array([[1]]), pa.int64()),
            (pa.array([1]), pa.list_(pa.int64())),
        ],
        ids=lambda value: str(value.type if isinstance(value, pa.Array) else value),
    )
    def test_types_and_values_that_do_not_fit_are_refused(self, column: pa.Array, kind: pa.DataType) -> None:
        rows = pa.record_batch([column, column], names=["good", "bad"])
        with pytest.raises(SchemaMismatch) as refused:
            intake.one_batch(rows, pa.schema([("good", column.type), ("bad", kind)]))
        assert refused.value.where["column"] == "bad"
        assert refused.value.where["expected"] == kind

    @pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("x", pa.int64())])], ids=str)
    def test_values_under_a_null_are_ignored(self, kind: pa.DataType) -> None:
        offsets = [pa.py_buffer(np.array([0, 1, 2], np.int32))] if pa.types.is_list(kind) else []
        column = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\x01"), *offsets], children=[pa.array([1, 1000])])
        narrow = pa.list_(pa.int8()) if pa.types.is_list(kind) else pa.struct([("x", pa.int8())])
        assert taken(column, narrow).to_pylist() == column.to_pylist()


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
