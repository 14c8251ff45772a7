from __future__ import annotations

import dataclasses
import datetime as dt
import math
from contextlib import suppress
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyarrow import dataset

from kvstore.testing.strategies import columns, foreign_types, rows as record_batches, schemas
from logformat.errors import SchemaMismatch
from logformat.rows import intake
from logformat.rows.schema import normalise
from tests.logformat.conversions import NUMBERS, UTC, exactly, taken, taken_values
from tests.support.contents import contents, values_of

ABC = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


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
            *(None, 7, "rows", b"rows", "", b"", [1], [[1, "x", 0.5]], iter([1]), iter([ROWS[0], 1]), {1, 2}),
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


@dataclasses.dataclass
class Row:
    a: int | None
    b: str | None
    c: float | None


class Modelled:
    """Like a pydantic model."""

    def __init__(self, row: dict[str, Any]) -> None:
        self._row = row

    def model_dump(self) -> dict[str, Any]:
        return self._row


class TestObjects:
    ROWS = TestForms.ROWS

    @pytest.mark.parametrize("make", [dict, lambda row: Row(**row), Modelled, MappingProxyType])
    def test_a_row_may_be_an_object(self, make: Any) -> None:
        rows = [make(row) for row in self.ROWS]
        for data in (rows, tuple(rows), iter(rows), [rows[0], self.ROWS[1]]):
            assert intake.one_batch(data, ABC).to_pylist() == self.ROWS
        assert intake.one_batch(rows[0], ABC).to_pylist() == self.ROWS[:1]

    def test_an_object_inside_a_row_is_a_struct(self) -> None:
        outer = dataclasses.make_dataclass("Outer", ["k", "row"])
        schema = pa.schema([("k", pa.int64()), ("row", pa.struct(list(ABC)))])
        assert intake.one_batch(outer(1, Row(**self.ROWS[0])), schema).to_pylist() == [{"k": 1, "row": self.ROWS[0]}]

    def test_the_class_is_no_row(self) -> None:
        for data in (Row, [Row], Modelled):
            with pytest.raises(SchemaMismatch):
                intake.one_batch(data, ABC)

    def test_a_dataset_and_a_lazy_frame_are_rows(self) -> None:
        rows = pa.Table.from_pylist(self.ROWS, ABC)
        for data in (dataset.dataset(rows), dataset.InMemoryDataset([rows]), polars.from_arrow(rows).lazy()):
            assert intake.one_batch(data, ABC).to_pylist() == self.ROWS

    def test_many_rows_of_an_iterator_are_converted_in_portions(self) -> None:
        count = 2 * intake.ROWS_TOGETHER + 1
        batches = list(intake.record_batches(({"a": n} for n in range(count)), ABC))
        assert len(batches) == 3
        assert [n for batch in batches for n in batch.column(0).to_pylist()] == list(range(count))


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
            (pa.table({"k": [1], "n": [1]}), ONE, r"only the columns of the primary key.*key=\['k'\] unknown=\['n'\]"),
            ({"k": 1, "n": 1}, ONE, "only the columns of the primary key"),
            ([pa.scalar("a")], ONE, "different type"),
            ((1, 2), ONE, "one value for each"),
            ({1, 2}, ONE, "different type"),
        ],
    )
    def test_data_that_is_not_keys_is_refused(self, keys: Any, schema: pa.Schema, words: str) -> None:
        with pytest.raises(SchemaMismatch, match=words):
            intake.key_rows(keys, schema)


class TestNames:
    KEYED = pa.schema([pa.field("a", pa.int64(), False), ("b", pa.string()), ("c", pa.float64())])

    @pytest.mark.parametrize("names", [["b", "c"], ["a", "b", "d"], ["a", "b", "c", "d"], ["A", "b", "c"], []])
    def test_a_column_that_is_not_null_may_not_be_left_out_and_no_other_given(self, names: list[str]) -> None:
        whole = {"a": 1, "b": "x", "c": 0.5}
        for rows in ([dict.fromkeys(names)], [whole, dict.fromkeys(names)], [whole] * 20 + [dict.fromkeys(names)]):
            with pytest.raises(SchemaMismatch):
                intake.one_batch(rows, self.KEYED)
        with pytest.raises(SchemaMismatch):
            intake.one_batch(pa.table({name: [1] for name in names or "b"}), self.KEYED)

    @given(
        rows=st.lists(
            st.fixed_dictionaries({"a": st.integers(-9, 9)}, optional={"b": st.text(max_size=3), "c": st.floats(0, 1)}),
            max_size=20,
        )
    )
    def test_a_nullable_column_that_is_left_out_is_null(self, rows: list[dict[str, Any]]) -> None:
        whole = [{"a": None, "b": None, "c": None} | row for row in rows]
        for data in (rows, tuple(rows), iter(rows), (row for row in rows)):
            assert intake.one_batch(data, self.KEYED).to_pylist() == whole
        for name in ("b", "c"):
            arrow = pa.Table.from_pylist(whole, self.KEYED).drop_columns([name])
            assert intake.one_batch(arrow, self.KEYED).to_pylist() == [row | {name: None} for row in whole]

    def test_a_column_that_is_named_as_given_may_not_be_left_out(self) -> None:
        for data in ({"a": 1, "b": "x"}, [{"a": 1, "b": "x"}] * 20, pa.table({"a": [1], "b": ["x"]})):
            with pytest.raises(SchemaMismatch, match="missing"):
                intake.one_batch(data, self.KEYED, fills=False)

    def test_the_error_names_what_is_missing_or_unknown(self) -> None:
        with pytest.raises(SchemaMismatch) as refused:
            intake.one_batch({"b": "x", "d": 2}, self.KEYED)
        assert refused.value.where["missing"] == ["a"]
        with pytest.raises(SchemaMismatch) as refused:
            intake.one_batch({"a": 1, "d": 2}, self.KEYED)
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
