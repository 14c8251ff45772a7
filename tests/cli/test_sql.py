"""``sql``: results as rows and JSON, and how queries that can't be run are refused."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

import kvstore
from tests.cli.commands import fine, run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing here writes it."""
    path = tmp_path_factory.mktemp("sql") / "store"
    with kvstore.open(path) as store:
        table = store.create_table("files", pa.schema({"path": pa.string(), "size": pa.int64()}), primary_key="path")
        table.upsert([{"path": name, "size": len(name)} for name in ("a", "bb", "ccc")])
        table.delete("bb")
    return path


def test_a_query_prints_rows(store: Path) -> None:
    done = fine("sql", store, "SELECT path, size FROM files WHERE size > 1 ORDER BY path")
    assert done.out == "path  size\n----  ----\nccc      3\n"
    assert fine("sql", store, "SELECT count(*) AS n, NULL AS z FROM files", "--json").lines == [{"n": 2, "z": None}]
    assert fine("sql", store, "SELECT path FROM files WHERE size > 99").out == "path\n----\n"
    assert fine("sql", store, "SELECT path FROM files WHERE size > 99", "--json").out == ""


def test_changes_are_a_table(store: Path) -> None:
    query = "SELECT _change_type AS what, path FROM changes('files', 3) ORDER BY _log_offset"
    assert fine("sql", store, query, "--json").lines == [{"what": "delete", "path": "bb"}]


def test_types_of_results_have_their_json_form(store: Path) -> None:
    query = """SELECT 1.50::DECIMAL(5, 2) AS d, [1, NULL] AS l, {'a': 'x'} AS s, 'x'::ENUM('x', 'y') AS e,
        DATE '2026-01-31' AS day, '\\xFF'::BLOB AS b, 'nan'::DOUBLE AS f"""
    assert fine("sql", store, query, "--json").lines == [
        {"d": "1.50", "l": [1, None], "s": {"a": "x"}, "e": "x", "day": "2026-01-31", "b": "/w==", "f": "NaN"}
    ]


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("SELECT * FROM nothing", "nothing does not exist"),
        ("SELECT", "can't be run"),
        ("DROP TABLE files", "only reads"),
        ("SELECT * FROM read_csv('/etc/passwd')", "can't be run"),
        ("SELECT 1 AS a, 2 AS a", "name them with AS"),
        ("SELECT INTERVAL 1 MONTH AS i", "cast it"),
        ("SELECT 1 / (size - 1), error('no') FROM files", "no"),
    ],
)
def test_other_queries_are_refused_in_one_line(store: Path, query: str, word: str) -> None:
    done = run("sql", store, query, "--json")
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert done.err.count("\n") == 1
    assert "\\n" not in done.err


def test_without_duckdb_it_says_what_to_install(store: Path) -> None:
    with mock.patch.dict("sys.modules", {"duckdb": None}):
        done = run("sql", store, "SELECT 1")
    assert done.code == 2
    assert "pip install duckdb" in done.err
