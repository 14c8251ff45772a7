"""``init``, ``create``, ``tables``, ``describe``, and calls that are wrong."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import kvstore
from kvstore.cli.main import app
from tests.cli.commands import fine, run

COLUMNS = ("--column", "path:string", "--column", "size:int64 not null", "--column", "d:decimal128(5, 2)")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fine("init", tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing here writes it."""
    path = tmp_path_factory.mktemp("tables") / "store"
    fine("init", path)
    return path


def test_a_store_is_made_once(store: Path) -> None:
    assert kvstore.open(store, read_only=True).list_tables() == []
    fine("create", store, "t", *COLUMNS, "--key", "path")
    fine("init", store)
    assert [each["table"] for each in fine("tables", store, "--json").lines[0]] == ["t"]


def test_only_init_makes_a_store(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a\n1\n")
    for arguments in (
        ("tables", tmp_path / "new"),
        ("load", tmp_path / "new", "t", tmp_path / "f.csv", "--key", "a"),
        ("create", tmp_path, "t", *COLUMNS, "--key", "path"),
    ):
        done = run(*arguments)
        assert done.code == 2
        assert done.err.startswith("kvstore: There is no store here")
        assert "`kvstore init DIR`" in done.err
    for command in (("tables",), ("init",)):
        assert "This is a file" in run(*command, tmp_path / "f.csv").err
    assert [path.name for path in tmp_path.iterdir()] == ["f.csv"]
    done = run("init", tmp_path)
    assert done.code == 2
    assert "not empty" in done.err


def test_a_table_is_created_and_described(store: Path) -> None:
    fine("create", store, "t", *COLUMNS, "--key", "path", "--key", "size")
    fine("create", store, "a log", *COLUMNS, "--append-only")
    printed = fine("describe", store, "t", "--json").lines[0]
    assert printed.pop("options")["merge_engine"] == "last_row"
    assert printed == {
        "table": "t",
        "primary_key": ["path", "size"],
        "buckets": 1,
        "rows": 0,
        "log_start": 0,
        "log_end": 0,
        "bucket_key": ["path", "size"],
        "columns": [
            {"name": "path", "type": "string", "nullable": False},
            {"name": "size", "type": "int64", "nullable": False},
            {"name": "d", "type": {"decimal128": [5, 2]}, "nullable": True},
        ],
        "consumers": [],
    }
    facts, columns = fine("describe", store, "t").out.split("\n\n")
    assert dict(line.split(maxsplit=1) for line in facts.splitlines()).items() >= {
        ("primary_key", "path, size"),
        ("rows", "0"),
        ("merge_engine", "last_row"),
    }
    assert columns == (
        "column  type              nullable\n"
        "------  ----------------  --------\n"
        "path    string            no\n"
        "size    int64             no\n"
        "d       decimal128(5, 2)  yes\n"
    )
    assert fine("tables", store).out == (
        "table  key            buckets  rows  log_start  log_end\n"
        "-----  -------------  -------  ----  ---------  -------\n"
        "a log  (append-only)        1     0          0        0\n"
        "t      path, size           1     0          0        0\n"
    )


def test_consumers_are_described(store: Path) -> None:
    with kvstore.open(store) as opened:
        for name, buckets in (("one", 1), ("two", 2)):
            table = opened.create_table(name, pa.schema([pa.field("k", pa.int64(), False)]), "k", buckets=buckets)
            table.upsert([{"k": k} for k in range(40)])
            ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
            opened.consumer("all").commit(name, ends)
            opened.consumer("a few").commit(name, ends | {0: 3})
    assert fine("describe", store, "one", "--json").lines[0]["consumers"] == [
        {"consumer": "a few", "position": 3, "behind": 37},
        {"consumer": "all", "position": 40, "behind": 0},
    ]
    lag = ends[0] - 3
    assert fine("describe", store, "two", "--json").lines[0]["consumers"] == [
        {"consumer": "a few", "position": [3, ends[1]], "behind": lag},
        {"consumer": "all", "position": [ends[0], ends[1]], "behind": 0},
    ]
    assert fine("describe", store, "one").out.endswith(
        "\n\n"
        "consumer  position  behind\n"
        "--------  --------  ------\n"
        "a few            3      37\n"
        "all             40       0\n"
    )


def test_types_are_written_as_describe_has_them(store: Path) -> None:
    kinds = [
        *("bool", "int8", "uint64", "float", "double", "halffloat", "string", "binary", "date32[day]", "time32[s]"),
        *("time64[ns]", "timestamp[us]", "timestamp[ns, tz=UTC]", "duration[ms]", "decimal128(38, -2)"),
        "fixed_size_binary[16]",
    ]
    columns = [f"--column=c{at}:{kind}" for at, kind in enumerate([*kinds, "float64"])]
    fine("create", store, "t", *columns, "--append-only")
    printed = [line.split(maxsplit=1)[1] for line in fine("describe", store, "t").out.splitlines()[-len(columns) :]]
    assert [line.removesuffix("yes").strip() for line in printed] == [*kinds, "double"]


def test_columns_are_taken_from_a_file(store: Path, tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.large_string(), "n": pa.list_(pa.struct({"a": pa.date32()}))})
    parquet.write_table(schema.empty_table(), tmp_path / "f.parquet")
    fine("create", store, "t", "--like", tmp_path / "f.parquet", "--key", "k")
    with kvstore.open(store, read_only=True) as opened:
        assert opened.table("t").schema.field("k") == pa.field("k", pa.string(), False)
        assert pa.types.is_list(opened.table("t").schema.field("n").type)


def test_rows_that_are_not_counted(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", pa.schema({"k": pa.int8()}), "k", changelog_image="wal")
        table.upsert({"k": 1})
    (printed,) = fine("tables", tmp_path / "store", "--json").lines[0]
    assert (printed["rows"], printed["log_end"]) == (None, 1)
    assert "null" in fine("describe", tmp_path / "store", "t").out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("create", "{store}", "t"), "--column"),
        (("create", "{store}", "t", *COLUMNS), "--append-only"),
        (("create", "{store}", "t", *COLUMNS, "--key", "path", "--append-only"), "--append-only"),
        (("create", "{store}", "t", *COLUMNS, "--key", "nope"), "primary key"),
        (("create", "{store}", "t", "--column", "path", "--key", "path"), "NAME:TYPE"),
        (("create", "{store}", "t", "--column", "path:text", "--key", "path"), "Did you mean `string`?"),
        (("create", "{store}", "t", "--column", "n:int", "--key", "n"), "Did you mean `int64`?"),
        (("create", "{store}", "t", "--column", "a:fixed_size_binary[0]", "--append-only"), "a"),
        (("create", "{store}", "t", "--column", "a:decimal128(99, 1)", "--append-only"), "Unknown type"),
        (("create", "{store}", "t$", *COLUMNS, "--append-only"), "without $"),
        (("create", "{store}", "t", "--like", "{store}/nothing.csv", "--append-only"), "no file"),
        (("describe", "{store}", "t\x1b[31m"), "There is no such table"),
        (("tables", "{store}", "--jsno"), "No such option"),
        (("tables",), "Missing argument"),
        (("tabels", "{store}"), "No such command"),
        (("tables", "{store}\0"), "null"),
    ],
)
def test_a_bad_call_is_reported_in_one_line(empty: Path, arguments: tuple[str, ...], word: str) -> None:
    store = empty
    done = run(*(argument.format(store=store) for argument in arguments))
    assert done.code == 2
    assert word in done.err
    assert "Traceback" not in done.err
    assert "\x1b" not in done.err
    assert done.out == ""
    if done.err.startswith("kvstore: "):
        assert done.err.count("\n") == 1
    assert fine("tables", store, "--json").lines == [[]]


def test_every_command_has_help_with_examples() -> None:
    groups = [((), app), (("log",), next(iter(app.registered_groups)).typer_instance)]
    found = []
    for words, group in groups:
        for command in group.registered_commands:
            words_of = (*words, command.callback.__name__)
            printed = fine(*words_of, "--help").out
            assert "Examples:\n  " in printed, words_of
            assert f"kvstore {' '.join(words_of)} " in printed, words_of
            found.append(" ".join(words_of))
    assert found == [
        *("init", "create", "alter", "tables", "describe", "consumers"),
        *("get", "scan", "explain", "upsert", "delete", "drop", "load", "export"),
        *("changelog", "history", "writers", "undo", "apply", "sql", "check", "compact", "backup", "replicate"),
        *("serve", "ui", "doctor", "demo"),
        *("log ls", "log show"),
    ]


def test_tables_of_several_buckets(store: Path) -> None:
    with kvstore.open(store) as opened:
        table = opened.create_table(
            "t", pa.schema([pa.field("k", pa.int64(), False)]), "k", buckets=3, merge_engine="first_row"
        )
        table.upsert([{"k": k} for k in range(9)])
        ends = [end for _, end in table.offsets().values()]
    (printed,) = fine("tables", store, "--json").lines[0]
    assert printed == {
        "table": "t",
        "primary_key": ["k"],
        "buckets": 3,
        "rows": 9,
        "log_start": [0, 0, 0],
        "log_end": ends,
    }
    assert "[0,0,0]" in fine("tables", store).out
    assert "bucket_key" in fine("describe", store, "t").out


def test_consumers_are_listed_with_their_lags(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with kvstore.open(path) as store:
        for name, buckets in (("one", 1), ("two", 2)):
            table = store.create_table(name, {"k": "int64"}, primary_key="k", buckets=buckets)
            table.upsert([{"k": k} for k in range(5)])
            store.consumer("late").commit(name, dict.fromkeys(range(buckets), 0))
        store.consumer("quick").commit("one", {0: 5})
    found = fine("consumers", path, "--json").lines[0]
    assert [(each["consumer"], each["table"], each["position"], each["lag_changes"]) for each in found] == [
        ("late", "one", 0, 5),
        ("late", "two", [0, 0], 5),
        ("quick", "one", 5, 0),
    ]
    assert all((each["lag_seconds"] > 0) == (each["log_bytes"] > 0) == (each["lag_changes"] > 0) for each in found)
    assert fine("consumers", path).out.splitlines()[0].split()[:2] == ["consumer", "table"]
