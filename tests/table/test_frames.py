"""A table beside pandas, Polars and Arrow: rows come in from any of them, and go out to any of them, as they are."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import InvalidRequest, SchemaMismatch, UnsupportedOperation
from tests.cli.commands import fine
from tests.support.examples import slow
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("path", pa.string(), False), pa.field("size", pa.int64())])
ROWS = [{"path": name, "size": size} for name, size in [("a", 1), ("b", None), ("c", 2**60 + 1)]]


@pytest.fixture
def files(store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("files", SCHEMA, "path")
    table.upsert(ROWS)
    return table


class TestOut:
    def test_a_table_is_an_arrow_stream_again_and_again(self, files: kvstore.Table) -> None:
        for _ in range(2):
            assert pa.table(files).equals(files.scan().read_all())
            assert pl.DataFrame(files).to_dicts() == ROWS
        files.upsert({"path": "d", "size": 4})
        assert pa.table(files).num_rows == 4

    def test_a_requested_schema_changes_the_representation_only(self, files: kvstore.Table) -> None:
        wide = pa.schema([pa.field("path", pa.large_string(), False), pa.field("size", pa.int64())])
        found = pa.RecordBatchReader.from_stream(files, schema=wide).read_all()
        assert found.schema == wide
        assert found.to_pylist() == ROWS
        for other in (
            pa.schema([("path", pa.string())]),
            pa.schema([("size", pa.int64()), ("path", pa.string())]),
            pa.schema([("path", pa.int64()), ("size", pa.int64())]),
            pa.schema([("path", pa.string()), ("size", pa.string())]),
        ):
            with pytest.raises(SchemaMismatch, match="requested"):
                pa.RecordBatchReader.from_stream(files, schema=other)

    def test_each_library_gets_columns_filter_limit_and_time(self, files: kvstore.Table) -> None:
        before = files.offsets()[0][1]
        files.delete("a")
        wanted = {"columns": ["size"], "filter": pc.field("path") < "c", "limit": 1, "as_of": before}
        assert files.to_arrow(**wanted).to_pylist() == [{"size": 1}]
        assert files.to_polars(**wanted).to_dicts() == [{"size": 1}]
        assert files.to_pandas(**wanted).to_dict("list") == {"size": [1]}
        assert files.to_pandas(filter=pc.field("path") > "z").columns.tolist() == ["path", "size"]

    def test_pandas_gets_integers_exactly_although_some_are_null(self, files: kvstore.Table) -> None:
        frame = files.to_pandas()
        assert frame["size"].tolist() == [1, pd.NA, 2**60 + 1]
        assert str(files.to_pandas(filter=pc.field("size") > 0)["size"].dtype) == "int64"
        files.upsert(frame)
        assert rows_of(files) == ROWS

    @pytest.mark.parametrize("library", ["polars", "pandas"])
    def test_a_library_that_is_not_installed_is_named(
        self, files: kvstore.Table, library: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(UnsupportedOperation, match=f"pip install {library}"):
            getattr(files, f"to_{library}")()

    def test_a_log_table_says_where_its_rows_are(self, store: kvstore.Store) -> None:
        log = store.create_table("log", SCHEMA)
        with pytest.raises(UnsupportedOperation, match="changelog"):
            log.to_arrow()


FRAME = pd.DataFrame({"path": ["a", "b", "c"], "size": pd.array([1, None, 2**60 + 1], "Int64")})


def frames() -> list[Any]:
    return [
        FRAME.sample(frac=1, random_state=7),
        FRAME.set_index("path"),
        FRAME.iloc[::-1],
        FRAME.set_index(pd.Index([3, 1, 2])),
        pa.Table.from_pandas(FRAME.sample(frac=1, random_state=7)),
        pa.Table.from_pandas(FRAME.set_index("path")),
    ]


class TestPandasIn:
    @pytest.mark.parametrize("which", range(6))
    def test_a_frame_of_any_index_is_its_rows(self, store: kvstore.Store, which: int) -> None:
        frame = frames()[which]
        upserted = store.create_table("upserted", SCHEMA, "path")
        upserted.upsert(frame)
        assert rows_of(upserted) == ROWS
        written = store.create_table("written", SCHEMA, "path")
        with written.writer() as writer:
            writer.upsert(frame)
        assert rows_of(written) == ROWS

    @pytest.mark.parametrize("which", range(4))
    def test_load_takes_a_file_of_a_frame_of_any_index(
        self, store_path: Path, store: kvstore.Store, tmp_path: Path, which: int
    ) -> None:
        frames()[which].to_parquet(tmp_path / "frame.parquet")
        store.close()
        fine("load", store_path, "files", tmp_path / "frame.parquet", "--key", "path")
        with kvstore.open(store_path) as again:
            assert set(again.table("files").schema.names) == {"path", "size"}
            assert again.table("files").to_arrow(["path", "size"]).to_pylist() == ROWS

    @pytest.mark.parametrize(
        "keys",
        [
            FRAME[["path"]].sample(2, random_state=1),
            FRAME.set_index("path").sample(2, random_state=1),
            FRAME["path"].sample(2, random_state=1),
            FRAME.set_index("path").sample(2, random_state=1).index,
        ],
    )
    def test_keys_to_delete_may_be_a_frame_or_its_index(self, files: kvstore.Table, keys: Any) -> None:
        files.delete(keys)
        left = rows_of(files)
        assert len(left) == 1
        files.upsert(ROWS)
        with files.writer() as writer:
            writer.delete(keys)
        assert rows_of(files) == left
        assert files.lookup(keys)["_found"].to_pylist() == [False, False]

    def test_a_named_index_that_is_no_column_is_explained(self, files: kvstore.Table) -> None:
        for frame in (
            FRAME.rename_axis("number"),
            FRAME.sample(frac=1, random_state=7).rename_axis("number"),
            FRAME.set_index("path", drop=False),
        ):
            with pytest.raises(SchemaMismatch, match=r"reset_index\("):
                files.upsert(frame)
        with pytest.raises(SchemaMismatch, match="unknown"):
            files.upsert(FRAME.assign(other=1))

    def test_a_named_range_index_is_a_column_too(self, store: kvstore.Store) -> None:
        table = store.create_table("t", pa.schema({"n": pa.int64(), "s": pa.string()}), "n")
        table.upsert(pd.DataFrame({"s": ["x", "y"]}).rename_axis("n"))
        assert rows_of(table) == [{"n": 0, "s": "x"}, {"n": 1, "s": "y"}]

    def test_several_levels_of_an_index_are_columns(self, store: kvstore.Store) -> None:
        table = store.create_table("t", pa.schema({"a": pa.int64(), "b": pa.string(), "v": pa.float64()}), ["a", "b"])
        frame = pd.DataFrame({"a": [2, 1], "b": ["x", "y"], "v": [0.5, 1.5]}).set_index(["b", "a"])
        table.upsert(frame)
        assert rows_of(table) == [{"a": 1, "b": "y", "v": 1.5}, {"a": 2, "b": "x", "v": 0.5}]
        table.delete(frame[:1])
        assert rows_of(table) == [{"a": 1, "b": "y", "v": 1.5}]

    def test_nan_in_a_text_column_is_named(self) -> None:
        text = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])
        for data in (
            [{"k": 1, "s": float("nan")}],
            [{"k": number, "s": float("nan")} for number in range(20)],
            pd.DataFrame({"k": [1], "s": [float("nan")]}),
        ):
            with pytest.raises(SchemaMismatch, match=r"NaN.*column=s"):
                records(data, text)
        assert records(pd.DataFrame({"k": [1, 2], "s": ["x", float("nan")]}), text)[0].column(1).to_pylist() == [
            "x",
            None,
        ]


def test_what_pandas_makes_of_missing_values_is_explained(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64", "n": "int64", "at": "timestamp[us, tz=UTC]"}, "k")
    with pytest.raises(SchemaMismatch, match=r'astype\("Int64"\).*column=n'):
        table.upsert(pd.DataFrame({"k": [1, 2], "n": [1, None]}))
    with pytest.raises(SchemaMismatch, match=r"tz_localize.*column=at"):
        table.upsert(pd.DataFrame({"k": [1], "at": [pd.Timestamp("2026-01-01")]}))
    local = store.create_table("local", {"k": "int64", "at": "timestamp[us]"}, "k")
    frame = pd.DataFrame({"k": [1], "at": [pd.Timestamp("2026-01-01T01", tz="Europe/Berlin")]})
    with pytest.raises(SchemaMismatch) as caught:
        local.upsert(frame)
    hint = 'dt.tz_convert("UTC").dt.tz_localize(None)'
    assert hint in str(caught.value)
    local.upsert(frame.assign(at=eval(f"frame['at'].{hint}")))
    assert local[1]["at"] == dt.datetime(2026, 1, 1)
    table.upsert(
        pd.DataFrame({"k": [1, 2], "n": pd.array([1, None], "Int64"), "at": [pd.Timestamp("2026", tz="UTC")] * 2})
    )
    assert table.count() == 2


def records(data: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    from logformat.rows import intake

    return list(intake.record_batches(data, schema))


@slow(60)
@given(
    rows=st.lists(
        st.tuples(st.text(max_size=4), st.none() | st.integers(-(2**63), 2**63 - 1), st.booleans()),
        unique_by=lambda row: row[0],
        max_size=9,
    ),
    seed=st.integers(0, 99),
    form=st.sampled_from(["plain", "shuffled", "indexed"]),
)
def test_what_comes_out_to_pandas_goes_in_again(rows: list[Any], seed: int, form: str, tmp_path_factory: Any) -> None:
    with kvstore.open(tmp_path_factory.mktemp("s") / "store") as store:
        one = store.create_table("one", pa.schema({"k": pa.string(), "n": pa.int64(), "b": pa.bool_()}), "k")
        other = store.create_table("other", one.schema, "k")
        one.upsert([{"k": k, "n": n, "b": b} for k, n, b in rows])
        frame = one.to_pandas()
        if form == "shuffled":
            frame = frame.sample(frac=1, random_state=seed)
        elif form == "indexed":
            frame = frame.set_index("k")
        other.upsert(frame)
        assert pa.table(other).equals(pa.table(one))
        assert one.to_polars().to_dicts() == rows_of(one)


def test_times_come_out_in_their_unit(store: kvstore.Store) -> None:
    table = store.create_table("t", pa.schema({"k": pa.int64(), "at": pa.timestamp("us", "UTC")}), "k")
    at = dt.datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=dt.UTC)
    table.upsert({"k": 1, "at": at})
    assert table.to_pandas()["at"][0].to_pydatetime() == at
    assert table.to_polars()["at"][0] == at


def test_arguments_of_the_wrong_kind_are_refused(files: kvstore.Table) -> None:
    with pytest.raises(InvalidRequest):
        files.to_pandas(limit=-1)
    with pytest.raises(SchemaMismatch):
        files.to_arrow(columns=["other"])


def test_polars_lacks_decimals_of_more_than_38_digits(store: kvstore.Store) -> None:
    kind = pa.decimal256(39, 0)
    schema = pa.schema([("k", pa.int64()), ("v", kind), ("l", pa.list_(pa.struct([("d", kind)])))])
    table = store.create_table("t", schema, "k")
    row = {"k": 1, "v": Decimal(10**39 - 1), "l": [{"d": Decimal(-1)}]}
    table.upsert(row)
    assert table.get(1) == row
    assert table.to_pandas()["v"][0] == row["v"]
    for column in ("v", "l"):
        with pytest.raises(UnsupportedOperation, match="38"):
            table.to_polars(columns=["k", column])
    assert table.to_polars(columns=["k"]).to_dicts() == [{"k": 1}]
