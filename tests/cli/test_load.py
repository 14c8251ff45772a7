"""``load``: what files it takes, and what it says of those that do not fit."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import threading
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyarrow import csv, feather, ipc, parquet
from rich.console import Console

import kvstore
from kvstore.cli.load.portions import portions
from kvstore.ingest import formats
from tests.cli.commands import changelog_of, fine, run, small_batches

ROWS = pa.table(
    {
        "k": pa.array([3, 1, 2], pa.int64()),
        "text": pa.array(['a,b\n"c"', "", None]),
        "x": pa.array([0.5, None, 1.5]),
        "yes": pa.array([True, False, None]),
    }
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fine("init", tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is ever loaded into it."""
    path = tmp_path_factory.mktemp("load") / "store"
    fine("init", path)
    fine("create", path, "t", "--column", "k:int64", "--column", "n:int8 not null", "--key", "k")
    return path


def write(path: Path) -> Path:
    """ROWS in the format of a file's name."""
    match path.suffix:
        case ".parquet" | ".pq":
            parquet.write_table(ROWS, path)
        case ".csv":
            csv.write_csv(ROWS, path)
        case ".jsonl" | ".ndjson":
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS.to_pylist()))
        case ".arrow":
            with ipc.new_file(path, ROWS.schema) as file:
                file.write_table(ROWS, max_chunksize=2)
        case ".arrows":
            with ipc.new_stream(path, ROWS.schema) as file:
                file.write_table(ROWS, max_chunksize=2)
        case ".feather":
            feather.write_feather(ROWS, path)
    return path


SUFFIXES = [".parquet", ".pq", ".csv", ".jsonl", ".ndjson", ".arrow", ".arrows", ".feather"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_becomes_a_table(store: Path, tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"f{suffix}")
    printed = fine("load", store, "t", file, "--key", "k", "--json").lines[0]
    assert printed == {
        "rows": 3,
        "batches": 1,
        "rows_before": 0,
        "batches_before": 0,
        "first_offset": 0,
        "last_offset": 2,
    }
    with kvstore.open(store, read_only=True) as opened:
        assert opened.table("t").primary_key == ("k",)
        assert opened.table("t").scan().read_all().to_pylist() == ROWS.sort_by("k").to_pylist()
    done = fine("load", store, "t", file)
    assert done.out == f"{file}: all 3 rows of it were loaded before\n"
    assert done.err == ""


def test_a_format_can_be_given(store: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "f.csv").rename(tmp_path / "data")
    assert "--format" in run("load", store, "t", file, "--key", "k").err
    fine("load", store, "t", file, "--key", "k", "--format", "csv")
    assert run("load", store, "t", file, "--format", "parquet").code == 2
    assert run("load", store, "t", file, "--format", "xml").code == 2


def test_text_is_read_as_the_table_has_it(store: Path, tmp_path: Path) -> None:
    fine("create", store, "t", "--column", "k:string", "--column", "b:binary", "--column", "n:int8", "--key", "k")
    (tmp_path / "f.csv").write_text('n,k,b\n1,007,AP8=\n,"",""\n-5,NA,\n')
    (tmp_path / "f.jsonl").write_text('{"b":"AP8=","k":"null","n":1}\n\n{"k":"x","n":null,"b":null}')
    for name in ("f.csv", "f.jsonl"):
        fine("load", store, "t", tmp_path / name)
    with kvstore.open(store, read_only=True) as opened:
        assert [tuple(row.values()) for row in opened.table("t").scan().read_all().to_pylist()] == [
            ("", b"", None),
            ("007", b"\0\xff", 1),
            ("NA", None, -5),
            ("null", b"\0\xff", 1),
            ("x", None, None),
        ]


def test_what_looks_like_a_time_in_json_is_text(store: Path, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text('{"k":1,"t":"2024-01-01","l":["2024-01-01 00:00:00"],"s":{"d":"2024-01-01"}}\n')
    fine("load", store, "t", tmp_path / "f.jsonl", "--key", "k")
    with kvstore.open(store, read_only=True) as opened:
        assert [str(each) for each in opened.table("t").schema.types] == [
            *("int64", "string", "list<item: string>", "struct<d: string>"),
        ]


def test_a_log_table_is_appended_to(store: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet")
    fine("load", store, "log", file, "--append-only")
    fine("load", store, "log", file, "--append-only")
    fine("load", store, "log", file, "--name", "once more")
    found = changelog_of(store, "log")
    assert [each["k"] for each in found] == [3, 1, 2, 3, 1, 2]
    assert {each["_change_type"] for each in found} == {"append"}


def test_the_column_a_table_fills_is_not_in_the_file(store: Path, tmp_path: Path) -> None:
    with kvstore.open(store) as opened:
        schema = pa.schema({"id": pa.int64(), "k": pa.int64(), "n": pa.int8()})
        opened.create_table("t", schema, "k", auto_increment="id")
    (tmp_path / "f.csv").write_text("k,n\n7,1\n8,2\n")
    fine("load", store, "t", tmp_path / "f.csv")
    assert fine("scan", store, "t", "--json").lines == [{"id": 1, "k": 7, "n": 1}, {"id": 2, "k": 8, "n": 2}]


def test_rows_are_left_out(store: Path, tmp_path: Path) -> None:
    fine("load", store, "log", write(tmp_path / "f.csv"), "--append-only", "--skip", "2")
    assert [each["k"] for each in changelog_of(store, "log")] == [2]
    done = fine("load", store, "log", tmp_path / "f.csv", "--skip", "9")
    assert done.out.endswith("it has no rows\n")


@pytest.mark.parametrize("name", ["f.csv", "f.jsonl", "f.parquet", "f.arrow"])
def test_a_row_that_does_not_fit_is_reported(store: Path, tmp_path: Path, name: str) -> None:
    """Batches before it are there, and nothing of its own."""
    rows = pa.table({"k": pa.array(range(100), pa.int64()), "n": [None if k == 57 else k for k in range(100)]})
    fine("create", store, "t", "--column", "k:int64", "--column", "n:int8 not null", "--append-only")
    file = tmp_path / name
    match file.suffix:
        case ".csv":
            csv.write_csv(rows, file)
        case ".jsonl":
            file.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
        case ".parquet":
            parquet.write_table(rows, file)
        case _:
            feather.write_feather(rows, file)
    with small_batches(10):
        done = run("load", store, "t", file)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "row=58" in done.err
    assert "column=n" in done.err
    assert "rows_loaded=50" in done.err
    assert [each["k"] for each in changelog_of(store, "t")] == list(range(50))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"k":1,"n":1}\n{"k":2,"n":"x"}\n', "row=2 given=str column=n expected=int8"),
        ('{"k":1,"n":1}\n{"k":2,"n":300}\n', "row=2 column=n expected=int8"),
        ('{"k":1,"n":1}\n{"k":2}\n', "row=2 missing=['n']"),
        ('{"k":1,"n":1,"o":1}\n', "row=1 missing=[] unknown=['o']"),
        ('{"k":1,"n":1}\n[1]\n', "row=2 given=list"),
        ('{"k":1,"n":1}\n{"k":1,"n":1', "row=2 reason="),
        ("k,n\n1,1\n2,x\n", "row=2 column=n expected=int8"),
        ("k,n\n1,1\n2\n", "Expected 2 columns, got 1"),
        ("k\n1\n", "missing=['n']"),
        ("k,n,o\n1,1,1\n", "unknown=['o']"),
        ("k,n,n\n1,1,1\n", "given twice"),
        ("k,n\n1,2\x1b[31m\n", "row=1"),
        ("k,n\n\xff,1\n", "row=1 column=k"),
    ],
)
def test_a_text_that_does_not_fit_is_reported(refusing: Path, tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / ("f.jsonl" if text[0] in "{[" else "f.csv")
    file.write_text(text)
    done = run("load", refusing, "t", file)
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert done.err.count("\n") == 1
    assert done.err[:-1].isprintable()
    assert changelog_of(refusing, "t") == []


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("f.csv", "k,a\n1,\n2,\n", "columns=['a']"),
        ("f.csv", "k,a\n", "columns=['k', 'a']"),
        ("f.jsonl", '{"k":1,"a":null}\n', "columns=['a']"),
        ("f.csv", "k;a\n1;2\n", "is --delimiter right? column=k columns=['k;a']"),
    ],
)
def test_a_table_is_not_created_from_columns_that_can_not_be_guessed(
    refusing: Path, tmp_path: Path, name: str, text: str, word: str
) -> None:
    (tmp_path / name).write_text(text)
    done = run("load", refusing, "new", tmp_path / name, "--key", "k")
    assert done.code == 2
    assert word in done.err
    assert ("create the table first" in done.err) == ("delimiter" not in word)


@pytest.mark.parametrize(("name", "text"), [("f.jsonl", '{"k":1}\n{"n":2,"k":2}\n'), ("f.csv", "k\n1\n2\n")])
def test_a_nullable_column_that_a_file_does_not_have_is_null(store: Path, tmp_path: Path, name: str, text: str) -> None:
    fine("create", store, "t", "--column", "k:int64", "--column", "n:int8", "--key", "k")
    (tmp_path / name).write_text(text)
    fine("load", store, "t", tmp_path / name)
    assert [each["n"] for each in changelog_of(store, "t")] == ([None, 2] if "n" in text else [None, None])


def test_a_load_goes_on_after_the_table_has_gained_a_column(store: Path, tmp_path: Path) -> None:
    """Its batches end where they ended before."""
    fine("create", store, "t", "--column", "k:int64", "--column", "n:string", "--append-only")
    rows = [{"k": n, "n": "x" * (n % 7)} for n in range(60)]
    file = tmp_path / "f.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = functools.partial(portions, rows_max=16, bytes_max=100)
    with mock.patch("kvstore.cli.load.command.portions", lambda batches: islice(small(batches), 3)):
        fine("load", store, "t", file)
    with kvstore.open(store) as opened:
        opened.add_columns("t", [pa.field("more", pa.int64())])
    with mock.patch("kvstore.cli.load.command.portions", small):
        fine("load", store, "t", file)
    assert [(each["k"], each["more"]) for each in changelog_of(store, "t")] == [(n, None) for n in range(60)]


def test_an_arrow_type_that_does_not_fit_is_reported(store: Path, tmp_path: Path) -> None:
    fine("create", store, "t", "--column", "k:int64", "--column", "text:int8", "--append-only")
    parquet.write_table(ROWS.select(["k", "text"]), tmp_path / "f.parquet")
    done = run("load", store, "t", tmp_path / "f.parquet")
    assert done.code == 2
    assert "column=text" in done.err
    assert "row=" not in done.err


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".jsonl"])
@pytest.mark.parametrize("content", [b"", b"\0garbage\xff" * 9])
def test_a_file_of_another_format_is_reported(refusing: Path, tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"f{suffix}").write_bytes(content)
    done = run("load", refusing, "new", tmp_path / f"f{suffix}", "--key", "k")
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"k,\xefve\n1,2\n", b"k,\xefve\n", b"k,n\n1,na\xefve\n"])
@pytest.mark.parametrize("arguments", [("t",), ("new", "--key", "k")], ids=["known", "new"])
def test_a_text_of_another_encoding_is_reported_and_creates_no_table(
    refusing: Path, tmp_path: Path, content: bytes, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "f.csv").write_bytes(content)
    name, *options = arguments
    done = run("load", refusing, name, tmp_path / "f.csv", *options)
    assert (done.code, done.out) == (2, "")
    assert "f.csv" in done.err
    assert "utf" in done.err.lower()
    assert "new" not in fine("tables", refusing).out


def test_bad_calls(store: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "f.csv")
    os.mkfifo(tmp_path / "fifo.csv")
    fine("load", store, "t", file, "--key", "k")
    for arguments, word in [
        (("nope", file), "tables=['t']"),
        (("t", tmp_path / "nothing.csv"), "no file"),
        (("t", tmp_path), "Only a regular file"),
        (("t", tmp_path / "fifo.csv"), "Only a regular file"),
        (("t", file, "--key", "text"), "another key"),
        (("t", file, "--append-only"), "another key"),
        (("new", file, "--append-only", "--key", "k"), "--append-only"),
        (("new", file, "--key", "x"), "float"),
        (("t", file, "--skip", "-1"), "--skip"),
    ]:
        done = run("load", store, *arguments)
        assert done.code == 2, arguments
        assert word in done.err
    assert fine("tables", store, "--json").lines[0][0]["rows"] == 3
    assert len(fine("tables", store, "--json").lines[0]) == 1


def test_a_file_that_changes_meanwhile_is_not_loaded_on(store: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "f.jsonl")
    apply = kvstore.Bucket.apply

    def changing(self: kvstore.Bucket, *arguments: Any, **named: Any) -> Any:
        os.utime(file)
        return apply(self, *arguments, **named)

    with small_batches(1), mock.patch.object(kvstore.Bucket, "apply", changing):
        done = run("load", store, "t", file, "--append-only")
    assert done.code == 2
    assert "changed while it was read" in done.err
    assert "rows_loaded=1" in done.err


def test_a_table_that_another_process_writes_is_reported(store: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "f.jsonl")
    with mock.patch.object(
        kvstore.Bucket, "apply", side_effect=kvstore.errors.StoreLocked("Another process writes it.")
    ):
        done = run("load", store, "t", file, "--append-only")
    assert (done.code, done.err.strip()) == (1, "kvstore: Another process writes it. rows_loaded=0")


def test_a_bar_is_for_terminals(store: Path, tmp_path: Path) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True)
    with mock.patch("kvstore.cli.progress.Console", return_value=console):
        fine("load", store, "t", write(tmp_path / "f.csv"), "--key", "k")
        assert shown.getvalue() == ""
        with mock.patch("kvstore.cli.progress.is_terminal", return_value=True):
            fine("load", store, "t", write(tmp_path / "f.parquet"))
    assert "f.parquet" in shown.getvalue()
    assert "3 rows" in shown.getvalue()


def test_pieces_of_a_large_file_are_all_there(store: Path, tmp_path: Path) -> None:
    rows = pa.table({"k": range(5000), "s": [f"row {k}" for k in range(5000)]})
    csv.write_csv(rows, tmp_path / "f.csv")
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    parquet.write_table(rows, tmp_path / "f.parquet", row_group_size=999)
    with (
        mock.patch.object(formats, "PORTION_ROWS", 700),
        mock.patch.object(formats, "INFERRED_BYTES", 4000),
        mock.patch.object(formats, "CSV_BLOCK_BYTES", 4000),
    ):
        for suffix in ("csv", "jsonl", "parquet"):
            fine("load", store, suffix, tmp_path / f"f.{suffix}", "--append-only")
            assert [(each["k"], each["s"]) for each in changelog_of(store, suffix)] == [
                tuple(row.values()) for row in rows.to_pylist()
            ]


FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}

# Standard input, compressed files, other separators, JSON arrays


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".ndjson"])
@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_compressed_text_is_loaded(store: Path, tmp_path: Path, suffix: str, compression: str) -> None:
    text = write(tmp_path / f"f{suffix}").read_bytes()
    file = tmp_path / f"f{suffix}.{compression}"
    with pa.CompressedOutputStream(str(file), {"gz": "gzip", "zst": "zstd"}[compression]) as stream:
        stream.write(text)
    fine("load", store, "t", file, "--key", "k")
    fine("load", store, "u", file.rename(tmp_path / f"data.{compression}"), "--key", "k", "--format", FORMATS[suffix])
    with kvstore.open(store, read_only=True) as opened:
        assert opened.table("t").to_arrow().to_pylist() == ROWS.sort_by("k").to_pylist()


def test_a_compressed_file_that_ends_too_early_is_refused(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.csv.gz"
    file.write_bytes(gzip.compress(b"k,n\n" + b"1,2\n" * 1000)[:-9])
    done = run("load", store, "t", file, "--append-only")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "can't be read" in done.err
    file.write_bytes(b"k,n\n1,2\n")
    assert "incorrect header" in run("load", store, "t", file, "--append-only").err


def test_formats_that_compress_themselves_are_not_compressed_again(store: Path, tmp_path: Path) -> None:
    for name in ("f.parquet.gz", "f.arrow.zst"):
        (tmp_path / name).write_bytes(b"")
        done = run("load", store, "t", tmp_path / name, "--append-only")
        assert done.code == 2
        assert "decompress it first" in done.err


@pytest.mark.parametrize(("delimiter", "given"), [(";", ";"), ("\t", "\\t"), ("\t", "\t"), ("|", "|")])
def test_another_separator(store: Path, tmp_path: Path, delimiter: str, given: str) -> None:
    file = tmp_path / "f.csv"
    file.write_text(f'k{delimiter}s\n1{delimiter}"a{delimiter}b"\n2{delimiter}1,5\n')
    fine("load", store, "t", file, "--key", "k", "--delimiter", given)
    assert [(each["k"], each["s"]) for each in changelog_of(store, "t")] == [(1, f"a{delimiter}b"), (2, "1,5")]
    assert "Columns found: k" in run("load", store, "t", file).err


def test_standard_input_is_loaded_once(store: Path) -> None:
    text = "k,n\n1,2\n3,4\n"
    arguments = ("load", store, "t", "-", "--format", "csv", "--append-only")
    assert fine(*arguments, given=text).out == "standard input: 2 rows loaded, offsets 0 to 1\n"
    assert fine(*arguments, given=text).out == "standard input: all 2 rows of it were loaded before\n"
    fine(*arguments, "--name", "again", given=text)
    fine(*arguments, given=text + "5,6\n")
    assert [each["k"] for each in changelog_of(store, "t")] == [1, 3, 1, 3, 1, 3, 5]
    assert "--format" in run("load", store, "t", "-", given=text).err


def test_a_load_of_standard_input_goes_on_where_it_was_refused(store: Path) -> None:
    fine("create", store, "t", "--column", "k:int64", "--append-only")
    text = "".join(f'{{"k":{k}}}\n' for k in range(50))
    arguments = ("load", store, "t", "-", "--format", "jsonl")
    with small_batches(10), mock.patch("kvstore.cli.load.command.portions", _three_of_ten):
        fine(*arguments, given=text)
    with small_batches(10):
        assert "20 rows loaded" in fine(*arguments, given=text).out
    assert [each["k"] for each in changelog_of(store, "t")] == list(range(50))


def _three_of_ten(batches: Any) -> Any:
    return islice(portions(batches, rows_max=10), 3)


@pytest.mark.parametrize(
    ("text", "guess"),
    [('{"k":1,"s":"a"}\n{"k":2}\n', "JSON lines"), ('\n[{"k":1,\n"s":"a"},\r\n{"k":2}]\n', "a JSON array")],
)
def test_json_is_lines_or_an_array(store: Path, tmp_path: Path, text: str, guess: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(text)
    done = fine("load", store, "t", file, "--key", "k")
    assert done.err == f"kvstore: {file} is read as {guess}; --format chooses another\n"
    assert [(each["k"], each["s"]) for each in changelog_of(store, "t")] == [(1, "a"), (2, None)]
    assert fine("load", store, "t", file, "--format", "jsonl").err == ""
    fine("create", store, "u", "--like", file, "--key", "k")


def test_columns_are_inferred_from_whole_elements_of_an_array(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text('[{"k":1,\n"s":"a"},\n{"k":2,\n"s":"b"}]')
    with mock.patch.object(formats, "INFERRED_BYTES", 5):
        fine("create", store, "t", "--like", file, "--key", "k")
    with kvstore.open(store, read_only=True) as opened:
        assert opened.table("t").schema.names == ["k", "s"]


def test_an_array_that_is_too_large_is_refused(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text('[{"k":1}]')
    with mock.patch.object(formats, "ARRAY_BYTES_MAX", 8):
        done = run("load", store, "t", file, "--key", "k")
    assert done.code == 2
    assert "make JSON lines of it" in done.err


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_columns_that_are_found_are_named(store: Path, tmp_path: Path, suffix: str) -> None:
    fine("create", store, "t", "--column", "k:int64", "--column", "text:string", "--key", "k")
    done = run("load", store, "t", write(tmp_path / f"f{suffix}"))
    assert done.code == 2
    assert "Columns found: k, text, x, yes." in done.err
    fine("create", store, "u", "--column", "key:int64", "--column", "txt:string", "--key", "key")
    done = run("load", store, "u", tmp_path / f"f{suffix}")
    assert "Columns found: k, text, x, yes. Is text meant to be txt?" in done.err


def test_columns_of_csv_are_read_in_the_callers_thread_alone() -> None:
    """A thread that still holds an object of Python when the interpreter ends aborts the process."""

    readers = set()

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            readers.add(threading.get_ident())
            return super().read(size)

    reader = formats.reader_of(formats.Format.CSV)
    with pytest.raises(pa.ArrowInvalid, match="Expected 2 columns, got 3"):
        reader.columns(Watched(b"path,size\na,1,3\n"))
    many = Watched(b"path,size\n" + b"a,1\n" * formats.INFERRED_BYTES)
    assert reader.columns(many) == pa.schema([("path", pa.string()), ("size", pa.int64())])
    assert readers == {threading.get_ident()}


@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_names_of_formats_are_the_same_everywhere(store: Path, tmp_path: Path, format: str) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "f.json"
    file.write_text('{"k":1}\n')
    fine("load", store, "t", file, "--key", "k", "--format", format)
    fine("upsert", store, "t", "-", "--format", format, given='{"k":2}\n')
    fine("job", "create", store, "j", "--source", tmp_path / "in", "--format", format, "--table", "t")
    fine("job", "run", store, "j")
    assert fine("export", store, "t", "--format", format).lines == [{"k": 1}, {"k": 2}]
