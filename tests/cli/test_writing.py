"""``upsert``, ``delete`` and ``drop``."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

import kvstore
from tests.cli.commands import Done, changelog_of, fine, process, run

SCHEMA = pa.schema([pa.field("a", pa.int64(), False), pa.field("b", pa.string(), False), ("n", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with kvstore.open(path) as store:
        store.create_table("t", pa.schema([pa.field("k", pa.string(), False), ("n", pa.int64())]), "k")
        store.create_table("two", SCHEMA, ["a", "b"], buckets=3)
        store.create_table("log", SCHEMA)
    return path


def rows(store: Path, table: str = "t") -> list[tuple[object, ...]]:
    with kvstore.open(store, read_only=True) as opened:
        return sorted(tuple(row.values()) for row in opened.table(table).scan().read_all().to_pylist())


# upsert


@pytest.mark.parametrize("arguments", [(), ("-",), ("-", "--format", "jsonl")])
@pytest.mark.parametrize("text", ['{"k":"a","n":1}\n\n{"n":2,"k":"b"}', ' [{"k":"a",\n"n":1},\n {"n":2,"k":"b"}]\n'])
def test_json_on_standard_input_is_upserted(store: Path, arguments: tuple[str, ...], text: str) -> None:
    done = fine("upsert", store, "t", *arguments, given=text)
    assert (done.out, done.err) == ("t: 2 rows written\n", "")
    assert rows(store) == [("a", 1), ("b", 2)]


def test_the_same_rows_are_written_again(store: Path) -> None:
    for n in (1, 2):
        assert fine("upsert", store, "log", "--json", given='{"a":1,"b":"x","n":1}').lines == [{"rows": 1}]
        assert len(changelog_of(store, "log")) == n


def test_every_format_comes_from_a_file_or_standard_input(store: Path, tmp_path: Path) -> None:
    data = pa.table({"k": ["p", "q"], "n": [1, None]})
    parquet.write_table(data, tmp_path / "f.parquet")
    with ipc.new_stream(tmp_path / "f.arrows", data.schema) as stream:
        stream.write_table(data)
    (tmp_path / "f.csv").write_text("k,n\np,1\nq,\n")
    (tmp_path / "f.jsonl").write_text('{"k":"p","n":1}\n{"k":"q"}\n')
    for suffix, format in (("parquet", "parquet"), ("arrows", "arrow"), ("csv", "csv"), ("jsonl", "jsonl")):
        file = tmp_path / f"f.{suffix}"
        for arguments, given in (((file,), b""), (("-", "--format", format), file.read_bytes())):
            fine("delete", store, "t", "p", "q")
            fine("upsert", store, "t", *arguments, given=given)
            assert rows(store) == [("p", 1), ("q", None)]


def test_a_partial_update_keeps_the_other_columns(store: Path) -> None:
    fine("upsert", store, "two", given='{"a":1,"b":"x","n":5}')
    fine("upsert", store, "two", "--columns", "a,b", given='{"a":1,"b":"x"}\n{"a":2,"b":"y"}')
    assert rows(store, "two") == [(1, "x", 5), (2, "y", None)]


@pytest.mark.parametrize(
    ("arguments", "text", "word"),
    [
        (("t",), '{"k":"a","n":1}\n{"k":"b","n":"x"}', "column=n"),
        (("t",), '{"k":"a","nn":1}', "Columns found: k, nn. Is nn meant to be n?"),
        (("t",), '{"n":1}', "Columns found: n."),
        (("t",), "[1, 2]", "JSON object"),
        (("t",), '[{"k":"a"}', "begins like a JSON array"),
        (("t",), "no json", "row=1"),
        (("t",), "k,n\na,1\n", "for CSV give --format csv"),
        (("t", "-", "--format", "csv"), "k;n\na;1\n", "Columns found: k;n. Is --delimiter right?"),
        (("t", "-", "--format", "parquet"), "no parquet", "path=standard input"),
        (("t", "-", "--delimiter", ";"), "", "--delimiter is for CSV"),
        (("t", "-", "--format", "csv", "--delimiter", "ab"), "", "one character"),
        (("t", "-", "--format", "csv", "--delimiter", '"'), "", "one character"),
        (("t", "--columns", "k,x"), "", "no such column"),
        (("t", "nothing.csv"), "", "no file"),
        (("nope",), "", "tables=['log', 't', 'two']"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_one_line(
    store: Path, arguments: tuple[str, ...], text: str, word: str
) -> None:
    _refused(run("upsert", store, *arguments, given=text), word)
    assert changelog_of(store, "t") == []


def _refused(done: Done, word: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert done.err.startswith("kvstore: ")
    assert done.err.count("\n") == 1


def test_a_terminal_shows_what_to_type(store: Path) -> None:
    done = run("upsert", store, "t", given='{"k":"a"}\n', terminal=True)
    assert done.err == "kvstore: type rows as jsonl; Ctrl-D ends them\n"
    assert rows(store) == [("a", None)]


def test_rows_come_through_a_pipe(store: Path) -> None:
    with process("upsert", store, "t", stdin=-1) as running:
        out, err = running.communicate('{"k":"a","n":1}\n{"k":"b"}\n')
    assert (running.returncode, out, err) == (0, "t: 2 rows written\n", "")
    assert rows(store) == [("a", 1), ("b", None)]


# delete


def test_rows_are_deleted_by_key(store: Path) -> None:
    fine("upsert", store, "t", given="\n".join(json.dumps({"k": k, "n": 1}) for k in "abcd"))
    assert fine("delete", store, "t", "a").out == "t: 1 row deleted\n"
    assert fine("delete", store, "t", "b", "zz", "c", "--json").lines == [{"deleted": 2}]
    assert fine("delete", store, "t", "zz").out == "t: 0 rows deleted\n"
    assert rows(store) == [("d", 1)]


def test_a_key_of_several_columns_takes_a_value_for_each(store: Path) -> None:
    fine("upsert", store, "two", given="\n".join(json.dumps({"a": a, "b": "x", "n": a}) for a in range(-2, 3)))
    assert fine("delete", store, "two", "--json", "--", "-2", "x", "1", "x", "2", "y").lines == [{"deleted": 2}]
    assert [a for a, *_ in rows(store, "two")] == [-1, 0, 2]
    _refused(run("delete", store, "two", "0", "x", "2"), "one value for each")
    assert [a for a, *_ in rows(store, "two")] == [-1, 0, 2]


def test_rows_are_deleted_by_a_condition(store: Path) -> None:
    fine("upsert", store, "two", given="\n".join(json.dumps({"a": a, "b": "x", "n": a % 3}) for a in range(30)))
    assert len(fine("scan", store, "two", "--where", "n = 2 and a < 20", "--json").lines) == 6
    assert fine("delete", store, "two", "--where", "n = 2 and a < 20", "--json").lines == [{"deleted": 6}]
    assert [a for a, *_ in rows(store, "two")] == [a for a in range(30) if a % 3 != 2 or a >= 20]
    assert fine("delete", store, "two", "--where", "n is null").out == "two: 0 rows deleted\n"


def test_writes_of_others_are_not_counted(store: Path) -> None:
    fine("upsert", store, "t", given='{"k":"a"}\n{"k":"b"}')
    delete = kvstore.Table.delete

    def meanwhile(table: kvstore.Table, keys: object) -> kvstore.WriteResult:
        first = delete(table, ["a"]).first_offset
        table.upsert({"k": "other"})
        last = delete(table, ["b"])
        (result,) = last.by_bucket.values()
        return kvstore.WriteResult({bucket: replace(result, first_offset=first) for bucket in last.by_bucket})

    with mock.patch.object(kvstore.Table, "delete", meanwhile):
        assert fine("delete", store, "t", "a", "b", "--json").lines == [{"deleted": 2}]


def test_a_table_that_ignores_deletes_says_that_none_was_deleted(store: Path) -> None:
    with kvstore.open(store) as opened:
        table = opened.create_table("kept", pa.schema({"k": pa.string()}), "k", delete_behavior="ignore")
        table.upsert({"k": "a"})
    assert fine("delete", store, "kept", "a", "--json").lines == [{"deleted": 0}]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("t",), "Give keys"),
        (("t", "a", "--where", "n = 1"), "Give keys"),
        (("t", "--where", "nn = 1"), "There is no column nn; columns are k, n"),
        (("two", "x", "y"), "expected=int64"),
        (("log", "1"), "can't be deleted"),
        (("log", "--where", "n = 1"), "can't be deleted"),
        (("nope", "a"), "no such table"),
    ],
)
def test_wrong_deletes_delete_nothing(store: Path, arguments: tuple[str, ...], word: str) -> None:
    fine("upsert", store, "t", given='{"k":"a","n":1}')
    _refused(run("delete", store, *arguments), word)
    assert rows(store) == [("a", 1)]


# drop


def test_a_table_is_dropped_with_yes_only(store: Path) -> None:
    _refused(run("drop", store, "t"), "--yes")
    assert "t" in kvstore.open(store, read_only=True).list_tables()
    assert fine("drop", store, "t", "--yes").out == "t: dropped\n"
    assert kvstore.open(store, read_only=True).list_tables() == ["log", "two"]
    _refused(run("drop", store, "t", "--yes"), "no such table")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_on_a_terminal_it_asks(store: Path, answer: str, code: int) -> None:
    fine("upsert", store, "t", given='{"k":"a"}')
    done = run("drop", store, "t", given=answer, terminal=True)
    assert done.code == code
    assert "Drop table t with all its rows and 1 changes?" in done.err
    assert ("t" in kvstore.open(store, read_only=True).list_tables()) == bool(code)


def test_no_room_for_a_copy_of_standard_input_is_one_line(store: Path) -> None:
    def full(**named: Any) -> Any:
        file = NamedTemporaryFile(**named)  # noqa: SIM115 (its user closes it)
        with Path("/dev/full").open("wb") as device:
            os.dup2(device.fileno(), file.fileno())
        return file

    with mock.patch("kvstore.cli.table.given_rows.NamedTemporaryFile", full):
        done = run("upsert", store, "t", given="{}\n")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "No space on the disk" in done.err
    assert "copy of standard input" in done.err
