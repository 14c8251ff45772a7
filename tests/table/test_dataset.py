"""A table as a dataset, and SQL over the tables of a store."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset

import kvstore
from kvstore.errors import (
    InvalidRequest,
    NoSuchTable,
    OffsetOutOfRange,
    SchemaMismatch,
    StoreClosed,
    StoreError,
    UnsupportedOperation,
)
from kvstore.read import scan
from kvstore.read.scan import rows_now
from kvstore.table.queries.dataset import TableDataset
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64()), pa.field("s", pa.string())])
ROWS = [{"k": k, "n": k % 7 if k % 5 else None, "s": f"{k:03}"} for k in range(300)]


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 3])
def table(store: kvstore.Store, request: pytest.FixtureRequest) -> kvstore.Table:
    table = store.create_table("files", SCHEMA, "k", buckets=request.param)
    table.upsert(ROWS)
    return table


@pytest.fixture(scope="module")
def files_of_module(store_of_module: kvstore.Store) -> kvstore.Store:
    """A store with the table; no test changes it."""
    store_of_module.create_table("files", SCHEMA, "k", buckets=3).upsert(ROWS)
    return store_of_module


Scans = list[tuple[Sequence[str] | None, str]]


@pytest.fixture
def scans(table: kvstore.Table) -> tuple[TableDataset, Scans]:
    """A dataset of the table, and what is read of the table for it."""
    seen: Scans = []

    def read(columns: Sequence[str] | None, filter: pc.Expression | None) -> pa.RecordBatchReader:
        seen.append((columns, str(filter)))
        return table.scan(columns, filter)

    return TableDataset(SCHEMA, read), seen


class TestDataset:
    def test_it_is_the_table_as_it_is(self, table: kvstore.Table) -> None:
        found = table.dataset()
        assert isinstance(found, dataset.Dataset)
        assert found.schema == SCHEMA
        for _ in range(2):
            assert found.to_table().to_pylist() == rows_of(table)
        table.upsert({"k": 1000, "n": 1, "s": ""})
        assert found.count_rows() == 301
        assert found.to_table(columns=["s", "k"], filter=pc.field("k") == 1000).to_pylist() == [{"s": "", "k": 1000}]
        assert found.to_table(columns={"m": pc.field("k") + 1}, filter=pc.field("k") == 7).to_pylist() == [{"m": 8}]
        assert found.head(3).num_rows == 3
        assert found.take([0, 2], ["k"]).num_rows == 2
        assert found.filter(pc.field("n") == 1).filter(pc.field("k") > 900).to_table()["k"].to_pylist() == [1000]
        assert [batch.num_rows for batch in found.to_batches(batch_size=100, filter=pc.field("k") < 1)] == [1]
        assert found.sort_by([("k", "descending")]).head(1)["k"].to_pylist() == [1000]
        assert found.join(table.dataset(), "k", right_suffix="_").count_rows() == 301

    def test_nothing_is_left_to_the_dataset_of_cpp(self) -> None:
        """It would be a null pointer."""
        inherited = {
            name
            for name in dir(dataset.Dataset)
            if not name.startswith("__") and name not in vars(TableDataset) and name in vars(dataset.Dataset)
        }
        assert not inherited

    def test_what_files_have_is_refused(self, table: kvstore.Table) -> None:
        found = table.dataset()
        for call in (found.get_fragments, lambda: found.replace_schema(SCHEMA), found._get_fragments):
            with pytest.raises(UnsupportedOperation):
                call()
        with pytest.raises(SchemaMismatch):
            found.to_table(columns=["other"])
        with pytest.raises(InvalidRequest):
            found.to_table(filter=pc.field("other") == 1)

    def test_duckdb_reads_the_columns_and_rows_of_a_query(self, scans: tuple[TableDataset, Scans]) -> None:
        files, seen = scans
        connection = duckdb.connect()
        connection.register("files", files)
        for _ in range(2):
            assert connection.execute("SELECT s FROM files WHERE k = 5").fetchall() == [("005",)]
        assert seen == [(["s"], "(k == 5)")] * 2
        assert connection.execute("SELECT count(*), count(n) FROM files").fetchall() == [(300, 240)]
        found = connection.execute("SELECT sum(a.k) FROM files a JOIN files b ON a.k = b.n WHERE b.k < 10").fetchall()
        assert found == [(sum(row["n"] for row in ROWS[:10] if row["n"] is not None),)]

    def test_polars_reads_the_columns_and_rows_of_a_query(self, scans: tuple[TableDataset, Scans]) -> None:
        files, seen = scans
        lazy = pl.scan_pyarrow_dataset(files)
        for _ in range(2):
            assert lazy.filter(pl.col("k") == 5).select("s").collect().to_dicts() == [{"s": "005"}]
        assert {filter for _, filter in seen} == {"(k == 5)"}
        assert lazy.select(pl.len()).collect().item() == 300
        assert lazy.filter(pl.col("n").is_null()).select(pl.col("k").sum()).collect().item() == sum(range(0, 300, 5))

    def test_a_log_table_is_its_records(self, store: kvstore.Store) -> None:
        log = store.create_table("log", SCHEMA, buckets=2)
        log.upsert(ROWS[:50])
        assert log.dataset().to_table(["k"], pc.field("n") == 1)["k"].to_pylist() == [1, 8, 22, 29, 36, 43]
        assert store.sql("SELECT count(*) AS c FROM log WHERE n = 1").read_all().to_pylist() == [{"c": 6}]


class TestSql:
    def rows(self, store: kvstore.Store, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in store.sql(query).read_all().to_pylist()]

    def test_a_query_is_one_statement(self, store: kvstore.Store) -> None:
        assert self.rows(store, "SELECT 1 AS a; -- the only one") == [(1,)]
        with pytest.raises(InvalidRequest, match=r"one statement.*statements=2"):
            store.sql("SELECT 1 AS a; SELECT 2 AS a")

    @pytest.mark.usefixtures("table")
    def test_tables_are_found_by_name(self, store: kvstore.Store) -> None:
        other = store.create_table("other table", {"k": "int64", "v": "string"}, "k")
        other.upsert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
        assert self.rows(store, "SELECT s FROM Files WHERE k = 5") == [("005",)]
        assert self.rows(store, 'SELECT v, s FROM "other table" JOIN files USING (k) ORDER BY 1') == [
            ("a", "001"),
            ("b", "002"),
        ]
        assert self.rows(store, "WITH x AS (SELECT max(k) m FROM files) SELECT m FROM x") == [(299,)]
        assert self.rows(store, "SELECT (SELECT count(*) FROM files), EXISTS (FROM files WHERE k = 3)") == [(300, True)]
        assert [row[0] for row in self.rows(store, "DESCRIBE files")] == SCHEMA.names
        found = store.sql("SELECT k FROM files WHERE k > 1000")
        assert (found.schema.names, found.read_all().num_rows) == (["k"], 0)

    def test_a_filter_on_the_key_reads_only_its_range(
        self, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = store.create_table("files", SCHEMA, "k")
        table.upsert(pa.table({"k": range(50_000), "s": ["x"] * 50_000}))
        read: list[int] = []

        def counted(*given: Any, **others: Any) -> Iterator[pa.RecordBatch]:
            for batch in rows_now(*given, **others):
                read.append(batch.num_rows)
                yield batch

        monkeypatch.setattr(scan, "rows_now", counted)
        assert self.rows(store, "SELECT s FROM files WHERE k BETWEEN 7 AND 9 OR k = 40000") == [("x",)] * 4
        assert sum(read) < 5_000

    def test_changes_are_found_by_their_place(self, store: kvstore.Store) -> None:
        table = store.create_table("files", SCHEMA, "k")
        table.upsert(ROWS[:3])
        middle = table.upsert(ROWS[1] | {"s": "new"}).first_offset
        assert self.rows(store, "SELECT count(*) FROM changes('files')") == [(5,)]
        assert self.rows(store, f"SELECT k, s FROM changes('files', {middle}) WHERE _change_type LIKE '%post%'") == [
            (1, "new")
        ]
        assert self.rows(store, f"SELECT count(*) FROM changes('files', 1, {middle})") == [(2,)]
        assert self.rows(store, "SELECT count(*) FROM changes('files', 'full', 'latest') WHERE k = 1") == [(1,)]
        assert self.rows(store, f"SELECT count(*) FROM changes('files', '{{\"0\": {middle}}}')") == [(2,)]
        later = (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).isoformat()
        assert self.rows(store, f"SELECT count(*) FROM changes('files', '{later}')") == [(0,)]
        joined = (
            "SELECT count(*) FROM files JOIN changes('files', 0, 3) c USING (k) JOIN changes('files', 3) d USING (k)"
        )
        assert self.rows(store, joined) == [(2,)]
        with pytest.raises(NoSuchTable):
            store.sql("SELECT * FROM changes('nope')")
        with pytest.raises(InvalidRequest, match=r"`start` of changes\(\) is full, earliest, latest, .* or a time"):
            store.sql("SELECT * FROM changes('files', 'never')")
        with pytest.raises(OffsetOutOfRange) as caught:
            store.sql("SELECT * FROM changes('files', 99)").read_all()
        assert caught.value.where["offset"] == 99
        with pytest.raises(InvalidRequest, match="constants"):
            store.sql("SELECT * FROM changes('files', 1 + 1)")

    @pytest.mark.parametrize(
        "query",
        [
            "SELECT * FROM read_csv('/etc/passwd')",
            "SELECT * FROM '/etc/passwd'",
            "SELECT * FROM read_text('/etc/passwd')",
            "SELECT * FROM glob('/*')",
            "SELECT * FROM secret",
            "SELECT getenv('PATH')",
            "COPY files TO '{path}'",
            "COPY (SELECT 1) TO '{path}'",
            "EXPORT DATABASE '{path}'",
            "ATTACH '{path}'",
            "INSTALL httpfs",
            "LOAD httpfs",
            "SET enable_external_access = true",
            "SET temp_directory = '{path}'",
            "SET lock_configuration = false",
            "RESET enable_external_access",
            "PRAGMA enable_external_access = true",
            "SELECT * FROM files; SELECT * FROM read_csv('/etc/passwd')",
            "SELECT * FROM nope",
            "SELECT nope FROM files",
            "SELEC",
            "",
        ],
    )
    def test_nothing_else_can_be_read_or_written(
        self, files_of_module: kvstore.Store, tmp_path: Path, query: str
    ) -> None:
        store = files_of_module
        secret = pa.table({"a": [1]})
        assert secret.num_rows
        before = set(os.listdir(tmp_path))
        with pytest.raises(InvalidRequest):
            store.sql(query.format(path=tmp_path / "out")).read_all()
        assert set(os.listdir(tmp_path)) == before
        assert store.list_tables() == ["files"]
        assert len(store["files"]) == 300

    def test_an_unknown_table_is_refused_with_those_that_there_are(
        self, store: kvstore.Store, table: kvstore.Table
    ) -> None:
        assert self.rows(store, "SHOW TABLES") == [(table.name,)]
        with pytest.raises(InvalidRequest) as caught:
            store.sql("SELECT * FROM fils")
        assert caught.value.where["tables"] == [table.name]
        assert "pg_" not in str(caught.value)

    @pytest.mark.parametrize("query", ["INSERT INTO files VALUES (1)", "CREATE TABLE t AS SELECT 1"])
    def test_a_query_that_writes_is_refused(self, store: kvstore.Store, table: kvstore.Table, query: str) -> None:
        with pytest.raises(InvalidRequest, match="only reads"):
            store.sql(query)
        assert len(table) == 300

    @pytest.mark.usefixtures("table")
    def test_parameters_are_values(self, store: kvstore.Store) -> None:
        def rows(query: str, params: Any) -> list[tuple[Any, ...]]:
            return [tuple(row.values()) for row in store.sql(query, params=params).read_all().to_pylist()]

        assert rows("SELECT s FROM files WHERE k = ? OR s = $2", [3, "007"]) == [("003",), ("007",)]
        assert rows("SELECT s FROM files WHERE k = $key", {"key": 3}) == rows("SELECT s FROM files WHERE k = ?", (3,))
        injected = "'; DROP TABLE files; --"
        assert rows("SELECT ? AS a, ?::DATE AS b", [injected, dt.date(2026, 1, 2)]) == [(injected, dt.date(2026, 1, 2))]
        assert rows("SELECT count(*) FROM files", []) == rows("SELECT count(*) FROM files", None) == [(300,)]

    @pytest.mark.parametrize(
        ("query", "params"),
        [
            ("SELECT ?", [1, 2]),
            ("SELECT ?", None),
            ("SELECT $a", {"b": 1}),
            ("SELECT ?", "a"),
            ("SELECT ?", 1),
            ("SELECT ?", [object()]),
            ("SELECT ?", ["\ud800"]),
            ("SELECT '\ud800'", None),
            ("SELECT * FROM read_csv(?)", ["/etc/passwd"]),
            ("SELECT * FROM read_text($path)", {"path": "/etc/passwd"}),
            ("SELECT * FROM query_table(?)", ["/etc/passwd"]),
        ],
    )
    def test_parameters_that_are_none_are_refused(self, store: kvstore.Store, query: str, params: Any) -> None:
        with pytest.raises(InvalidRequest):
            store.sql(query, params).read_all()

    @pytest.mark.parametrize(
        "kind",
        [
            lambda rows: rows,
            lambda rows: rows.to_batches()[0],
            lambda rows: rows.to_reader(),
            lambda rows: rows.to_pandas(),
            lambda rows: rows.to_pandas().set_index("k"),
            lambda rows: rows.to_pandas().sample(frac=1, random_state=1),
            pl.DataFrame,
            lambda rows: pl.DataFrame(rows).lazy(),
            dataset.dataset,
        ],
    )
    @pytest.mark.usefixtures("table")
    def test_data_is_joined_by_name(self, store: kvstore.Store, kind: Any) -> None:
        frame = kind(pa.table({"k": [7, 5, 1000], "about": ["seven", "five", "none"]}))
        query = "SELECT a.about, f.s FROM Frame a JOIN files f USING (k) JOIN Frame b USING (k) ORDER BY k"
        found = store.sql(query, tables={"frame": frame}).read_all().to_pylist()
        assert found == [{"about": "five", "s": "005"}, {"about": "seven", "s": "007"}]

    @pytest.mark.usefixtures("table")
    def test_a_table_of_another_store_is_joined(self, store: kvstore.Store, tmp_path: Path) -> None:
        with kvstore.open(tmp_path / "other") as other:
            theirs = other.create_table("files", {"k": "int64"}, "k")
            theirs.upsert([{"k": 3}, {"k": 1000}])
            query = "SELECT s FROM files JOIN theirs USING (k)"
            assert store.sql(query, tables={"theirs": theirs}).read_all().to_pylist() == [{"s": "003"}]

    @pytest.mark.parametrize(
        "tables",
        [
            [pa.table({"a": [1]})],
            {"files": pa.table({"a": [1]})},
            {"FILES": pa.table({"a": [1]})},
            {"a": pa.table({"a": [1]}), "A": pa.table({"a": [1]})},
            {"": pa.table({"a": [1]})},
            {1: pa.table({"a": [1]})},
            {"a": "/etc/passwd"},
            {"a": "SELECT 1"},
            {"a": [{"a": 1}]},
            {"a": None},
            {"a": duckdb},
        ],
    )
    @pytest.mark.usefixtures("table")
    def test_what_is_no_data_by_name_is_refused(self, store: kvstore.Store, tables: Any) -> None:
        with pytest.raises(InvalidRequest):
            store.sql("SELECT 1", tables=tables)

    def test_given_names_are_among_those_that_there_are(self, store: kvstore.Store) -> None:
        frame = pa.table({"a": [1]})
        with pytest.raises(InvalidRequest) as caught:
            store.sql("SELECT * FROM fram", tables={"frame": frame})
        assert caught.value.where["tables"] == ["frame"]
        with pytest.raises(InvalidRequest):
            store.sql("SELECT * FROM frame")
        with pytest.raises(InvalidRequest):
            store.sql("SELECT * FROM read_csv('/etc/passwd')", tables={"frame": frame})

    def test_tables_that_differ_only_in_case_are_not_taken_for_each_other(self, store: kvstore.Store) -> None:
        for name in ("t", "T"):
            store.create_table(name, SCHEMA, "k")
        store.create_table("other", SCHEMA, "k")
        for query in ("SELECT * FROM t", 'SELECT * FROM "T"'):
            with pytest.raises(InvalidRequest, match=r"upper and lower case.*tables=\['T', 't'\]"):
                store.sql(query)

    @pytest.mark.parametrize("end", [lambda store: store.close(), lambda store: store.drop_table("files")])
    def test_a_store_that_closes_ends_a_query(self, store: kvstore.Store, end: Callable[[kvstore.Store], None]) -> None:
        table = store.create_table("files", SCHEMA, "k")
        table.upsert(pa.table({"k": range(400_000)}))
        found = store.sql("SELECT k FROM files")
        end(store)
        with pytest.raises(StoreError):
            found.read_all()

    def test_a_closed_store_is_not_queried(self, store: kvstore.Store) -> None:
        store.close()
        with pytest.raises(StoreClosed):
            store.sql("SELECT 1")
