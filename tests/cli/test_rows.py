"""``get``, ``scan`` and ``changelog``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from tests.cli.commands import fine, run

SCHEMA = pa.schema(
    [pa.field("a", pa.int32(), False), pa.field("b,c", pa.string(), False), ("v", pa.string()), ("x", pa.float64())]
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing here writes it."""
    path = tmp_path_factory.mktemp("rows") / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, primary_key=["a", "b,c"])
        table.upsert([{"a": 1, "b,c": "é", "v": "one", "x": 0.5}, {"a": -2, "b,c": "y z", "v": None, "x": 2}])
        table.upsert({"a": 1, "b,c": "é", "v": "[red]\x1b[31m\nx\u202e", "x": float("nan")})
        table.delete((-2, "y z"))
        store.create_table("log", SCHEMA).upsert({"a": 1, "b,c": "", "v": None, "x": None})
    return path


def test_get_shows_the_row_of_a_key(store: Path) -> None:
    assert fine("get", store, "t", "1", "é").out == ("a    1\nb,c  é\nv    [red]\\x1b[31m\\nx\\u202e\nx    NaN\n")
    done = fine("get", store, "t", "1", "é", "--json")
    assert done.lines == [{"a": 1, "b,c": "é", "v": "[red]\x1b[31m\nx\u202e", "x": "NaN"}]
    assert done.out.replace("\n", "").isprintable()


def test_a_row_that_is_not_there_is_exit_code_1(store: Path) -> None:
    done = run("get", store, "t", "--", "-2", "y z")
    assert (done.code, done.out) == (1, "")
    assert done.err == "kvstore: there is no row of this key\n"
    done = run("get", store, "t", "--json", "--", "-2", "y z")
    assert (done.code, done.out) == (1, "null\n")


def test_scan_prints_columns_side_by_side(store: Path) -> None:
    assert fine("scan", store, "t", "--columns", 'x,"b,c",a').out == ("  x  b,c  a\n---  ---  -\nNaN  é    1\n")
    before = fine("scan", store, "t", "--as-of", "2", "--columns", '"b,c",v')
    assert before.out == "b,c  v\n---  ----\ny z  null\né    one\n"
    assert fine("scan", store, "t", "--as-of", "2", "--limit", "1", "--json").lines == [
        {"a": -2, "b,c": "y z", "v": None, "x": 2.0}
    ]
    assert fine("scan", store, "t", "--limit", "0").out == "a  b,c  v  x\n-  ---  -  -\n"
    assert fine("scan", store, "t", "--limit", "0", "--json").out == ""


def test_scan_takes_a_range_of_keys(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", {"shop": "string", "day": "int64"}, ["shop", "day"], buckets=2)
        table.upsert([{"shop": shop, "day": day} for shop in ("x", "xy", "z") for day in range(3)])

    def found(*arguments: str) -> list[str]:
        return [f"{row['shop']}{row['day']}" for row in fine("scan", store.path, "t", *arguments, "--json").lines]

    assert found("--start", "xy", "--start", "1", "--stop", "z") == ["xy1", "xy2"]
    assert found("--prefix", "x", "--reverse", "--limit", "4") == ["xy2", "xy1", "xy0", "x2"]
    assert found("--prefix", "z", "--prefix", "1") == ["z1"]
    done = run("scan", store.path, "t", "--start", "x", "--start", "one")
    assert (done.code, "does not fit" in done.err) == (2, True)
    assert run("scan", store.path, "t", "--stop", "x", "--stop", "1", "--stop", "2").code == 2


def test_explain_says_how_rows_are_found(tmp_path: Path) -> None:
    with kvstore.open(tmp_path) as made:
        table = made.create_table("t", {"id": "int64", "name": "string"}, "id", indexes={"by_name": "name"})
        table.upsert([{"id": number, "name": f"n{number}"} for number in range(9)])
    assert fine("explain", tmp_path, "t", "--where", "name like 'n1%' and id > 0").out == "index by_name by name\n"
    assert fine("explain", tmp_path, "t", "--where", "id > 5").out == "scan of 1 range of keys\n"
    missing = run("explain", tmp_path, "t")
    assert (missing.code, "--where" in missing.err) == (2, True)


def test_changelog_from_place_to_place(store: Path) -> None:
    def offsets(*arguments: str, table: str = "t") -> list[int]:
        return [each["_log_offset"] for each in fine("changelog", store, table, *arguments, "--json").lines]

    assert offsets() == [0, 1, 2, 3, 4]
    assert offsets("--start", "2", "--end", "4") == [2, 3]
    assert offsets("--start", "latest") == []
    assert offsets("--start", "full") == [4]
    assert offsets(table="log") == [0]
    with kvstore.open(store, read_only=True) as opened:
        times = [
            each for batch in opened.table("t").changelog() for each in batch.column("_commit_timestamp").to_pylist()
        ]
    assert offsets("--start", times[2].isoformat()) == [at for at, time in enumerate(times) if time >= times[2]]
    later = (times[4] + dt.timedelta(hours=1)).astimezone(dt.timezone(dt.timedelta(hours=5))).isoformat()
    assert offsets("--start", later) == []
    columns = "_log_offset,_change_type,a"
    assert fine("changelog", store, "t", "--start", "1", "--end", "3", "--columns", columns).out == (
        "_log_offset  _change_type      a\n"
        "-----------  ---------------  --\n"
        "          1  insert           -2\n"
        "          2  update_preimage   1\n"
    )


def test_names_are_split_at_commas_and_quotes_keep_them(store: Path) -> None:
    assert list(fine("scan", store, "t", "--columns", 'a, "b,c"', "--json").lines[0]) == ["a", "b,c"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("get", "t", "1"), "one value for each"),
        (("get", "t", "one", "x"), "expected=int32"),
        (("get", "log", "1"), "no key"),
        (("scan", "log"), "changelog"),
        (("scan", "t", "--columns", "a,b"), "column"),
        (("scan", "t", "--columns", ""), "column"),
        (("scan", "t", "--limit", "-1"), "--limit"),
        (("scan", "t", "--as-of", "99"), "99"),
        (("changelog", "t", "--start", "yesterday"), "--start is full, earliest, latest"),
        (("changelog", "t", "--start", "2024-01-01"), "time with its zone"),
        (("changelog", "t", "--end", "earliest"), "--end is latest"),
        (("changelog", "t", "--start", "6"), "offset=6"),
        (("changelog", "t", "--start", "3", "--end", "2"), "before its start"),
        (("changelog", "nope"), "tables=['log', 't']"),
    ],
)
def test_a_bad_call_is_exit_code_2(store: Path, arguments: tuple[str, ...], word: str) -> None:
    command, *rest = arguments
    done = run(command, store, *rest)
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert "Traceback" not in done.err


def test_reading_writes_nothing(store: Path) -> None:
    def files() -> dict[Path, tuple[int, int]]:
        return {
            path: (path.stat().st_mtime_ns, path.stat().st_size)
            for path in store.rglob("*")
            if path.is_file() and path.name != "lock.mdb"
        }

    before = files()
    for arguments in (
        ("tables",),
        *(("describe", "t"), ("get", "t", "1", "é"), ("scan", "t"), ("changelog", "t"), ("check",)),
        *(("log", "ls", "t"), ("log", "show", "t", "--records")),
    ):
        place = 2 if arguments[0] == "log" else 1
        fine(*arguments[:place], store, *arguments[place:])
    assert files() == before


def test_places_in_several_buckets(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), "k", buckets=2)
        table.upsert([{"k": k} for k in range(9)])
        end = table.offsets()[0][1]
    then = f'{{"0": {end}, "1": 0}}'
    assert len(fine("scan", path, "t", "--as-of", then, "--json").lines) == end
    assert len(fine("scan", path, "t", "--as-of", "2099-01-01T00:00:00Z", "--json").lines) == 9
    assert len(fine("changelog", path, "t", "--start", then, "--json").lines) == 9 - end
    assert len(fine("changelog", path, "t", "--bucket", 0, "--start", 1, "--json").lines) == end - 1
    for place in ("1", '{"0": 1}', '{"0": "x", "1": 0}', "{", '{"a": 0, "1": 0}', "yesterday"):
        for arguments in (("scan", path, "t", "--as-of", place), ("changelog", path, "t", "--start", place)):
            done = run(*arguments)
            assert (done.code, done.out) == (2, "")
            assert done.err.startswith("kvstore: ")
