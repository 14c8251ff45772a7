"""``export``: what it writes is what the table has, as a whole or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

import kvstore
from kvstore.cli.export.target import replaced
from kvstore.disk.files import Files
from tests.cli.commands import fine, process, run
from tests.support.json_forms import FORMS

FIELDS = [pa.field(f"c{at}", kind) for at, (kind, _, _) in enumerate(FORMS)]
SCHEMA = pa.schema([pa.field('k, "é"', pa.int64(), False), *FIELDS])
QUOTE = '"'
IN_PARQUET = [each.name for each in SCHEMA if each.type != pa.decimal128(5, -2)]
SUFFIXES = ["csv", "jsonl", "parquet", "arrow", "arrows", "csv.gz", "jsonl.zst"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing here writes its table ``t``."""
    path = tmp_path_factory.mktemp("export") / "store"
    columns = [pa.array([None, value], kind) for kind, value, _ in FORMS]
    rows = pa.RecordBatch.from_arrays([pa.array([0, 1]), *columns], schema=SCHEMA)
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, primary_key='k, "é"').upsert(rows)
        store.create_table("none", pa.schema({"k": pa.string()}), primary_key="k")
        table = store.create_table("n", pa.schema({"k": pa.int64(), "s": pa.string()}), primary_key="k", buckets=2)
        table.upsert([{"k": k, "s": f"row {k}"} for k in range(20)])
        table.delete([3, 4])
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_value_comes_back_from_a_file(store: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"f.{suffix}"
    columns: tuple[str, ...] = ()
    if suffix == "parquet":
        refused = run("export", store, "t", "--to", file)
        assert refused.code == 2
        assert "Parquet can't hold a column" in refused.err
        assert not file.exists()
        columns = ("--columns", ",".join(f'"{name.replace(QUOTE, QUOTE * 2)}"' for name in IN_PARQUET))
    done = fine("export", store, "t", "--to", file, "--json", *columns)
    assert done.lines == [{"rows": 2, "file": str(file)}]
    with kvstore.open(tmp_path / "again") as again:
        again.create_table("t", SCHEMA, primary_key='k, "é"')
    fine("load", tmp_path / "again", "t", file)
    expected = fine("scan", store, "t", "--json", *columns).out
    assert fine("scan", tmp_path / "again", "t", "--json", *columns).out == expected
    assert [path.name for path in tmp_path.iterdir() if path.name != "again"] == [file.name]


@pytest.mark.parametrize("format", ["csv", pytest.param("parquet", marks=pytest.mark.long)])
def test_standard_output_is_what_a_pipe_takes(store: Path, tmp_path: Path, format: str) -> None:
    kvstore.open(tmp_path / "again").close()
    with process("export", store, "n", "--format", format, text=False) as sending:
        load = ("load", tmp_path / "again", "n", "-", "--format", format, "--key", "k")
        with process(*load, stdin=sending.stdout, text=False) as loading:
            assert sending.stdout is not None
            sending.stdout.close()
            out, err = loading.communicate()
    assert (sending.returncode, loading.returncode) == (0, 0), err
    assert b"18 rows loaded" in out
    assert len(fine("scan", tmp_path / "again", "n", "--json").lines) == 18


def test_csv_is_plain(store: Path) -> None:
    done = fine("export", store, "n", "--format", "csv", "--where", "k < 2", "--columns", "s,k")
    assert sorted(done.out.splitlines()) == ['"row 0",0', '"row 1",1', "s,k"]
    assert done.err == ""


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "arrow"])
def test_a_table_without_rows_has_its_columns(store: Path, tmp_path: Path, format: str) -> None:
    file = tmp_path / f"f.{format}"
    fine("export", store, "none", "--to", file)
    match format:
        case "csv":
            assert file.read_text() == "k\n"
        case "jsonl":
            assert file.read_text() == ""
        case "parquet":
            assert parquet.read_table(file).schema.names == ["k"]
        case _:
            assert ipc.open_file(file).read_all().schema.names == ["k"]


def test_a_null_that_would_be_an_empty_line_is_refused(store: Path, tmp_path: Path) -> None:
    done = run("export", store, "t", "--columns", "c0", "--to", tmp_path / "f.csv")
    assert done.code == 2
    assert "can't have a null" in done.err
    assert os.listdir(tmp_path) == []
    assert len(fine("export", store, "t", "--columns", "c0", "--format", "jsonl").lines) == 2


def test_changes_are_exported(store: Path, tmp_path: Path) -> None:
    fine("export", store, "n", "--changelog", "--to", tmp_path / "f.parquet")
    with kvstore.open(store, read_only=True) as opened:
        expected = pa.Table.from_batches(opened.table("n").changelog())
    assert parquet.read_table(tmp_path / "f.parquet").equals(expected)
    rows = fine("export", store, "n", "--changelog", "--format", "jsonl").lines
    assert [row["_change_type"] for row in rows].count("delete") == 2
    printed = fine("changelog", store, "n", "--start", '{"0": 2, "1": 0}', "--end", '{"0": 3, "1": 1}', "--json").lines
    arguments = ("--start", '{"0": 2, "1": 0}', "--end", '{"0": 3, "1": 1}', "--format", "jsonl")
    assert fine("export", store, "n", "--changelog", *arguments).lines == printed
    full = fine("export", store, "n", "--changelog", "--start", "full", "--format", "csv", "--columns", "k").out
    assert len(full.splitlines()) == 19


def test_rows_of_the_past_are_exported(store: Path) -> None:
    with kvstore.open(store) as opened:
        table = opened.create_table("past", pa.schema({"k": pa.string()}), primary_key="k")
        table.upsert([{"k": "a"}])
        table.upsert([{"k": "b"}])
    assert fine("export", store, "past", "--as-of", "1", "--format", "csv").out == 'k\n"a"\n'


def test_a_file_is_replaced_as_a_whole(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_text("old")
    (tmp_path / "link.csv").symlink_to(file)
    done = fine("export", store, "n", "--to", tmp_path / "link.csv", "--columns", "k")
    assert (done.out, done.err) == ("", f"{tmp_path}/link.csv: 18 rows\n")
    assert len(file.read_text().splitlines()) == 19
    assert (tmp_path / "link.csv").is_symlink()


INTERRUPTED = """
import os, signal
import kvstore.cli.export.command as export
def interrupted(batches):
    yield next(batches)
    os.kill(os.getpid(), signal.{signal})
    yield from batches
export.portions = interrupted
"""


def test_ctrl_c_leaves_the_file_that_was_there(store: Path, tmp_path: Path) -> None:
    for suffix in ("csv.gz", "parquet"):
        directory = tmp_path / suffix
        directory.mkdir()
        file = directory / f"f.{suffix}"
        file.write_text("old")
        with process("export", store, "n", "--to", file, script=INTERRUPTED.format(signal="SIGINT")) as running:
            _, err = running.communicate()
        assert running.returncode == 130, err
        assert (file.read_text(), os.listdir(directory)) == ("old", [file.name])


def test_a_killed_export_leaves_the_file_that_was_there(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_text("old")
    with process("export", store, "n", "--to", file, script=INTERRUPTED.format(signal="SIGKILL")) as running:
        running.communicate()
    assert file.read_text() == "old"
    (left,) = {path.name for path in tmp_path.iterdir()} - {"f.csv"}
    assert left.startswith(".f.csv.")


def test_damage_ends_an_export_without_a_whole_file(tmp_path: Path) -> None:
    path, file = tmp_path / "store", tmp_path / "f.parquet"
    with kvstore.open(path) as store:
        table = store.create_table("t", pa.schema({"k": pa.int64()}), primary_key="k")
        table.upsert([{"k": k} for k in range(10)])
    log = path / "tables/1/0/log/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\x01")
    done = run("export", path, "t", "--changelog", "--to", file)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert not file.exists()
    with process("export", path, "t", "--changelog", "--format", "parquet", text=False) as running:
        out, _ = running.communicate()
    assert running.returncode == 1
    assert not out.endswith(b"PAR1") or len(out) == 4


@pytest.mark.parametrize("call", ["sync", "rename"])
def test_a_full_disk_is_reported(store: Path, tmp_path: Path, call: str) -> None:
    file = tmp_path / "f.csv"
    with mock.patch.object(Files, call, side_effect=OSError(errno.ENOSPC, "No space left on device")):
        done = run("export", store, "n", "--to", file)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "No space on the disk" in done.err
    assert os.listdir(tmp_path) == []


def test_a_disk_that_is_full_before_the_first_byte_is_reported(store: Path, tmp_path: Path) -> None:
    """What is in the buffer is written again when the file is closed."""

    class Full(io.FileIO):
        def write(self, _data: object, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    opened = Path.open

    def open_full(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        return io.BufferedWriter(Full(path, mode)) if mode == "xb" else opened(path, mode, *arguments, **named)

    with mock.patch.object(Path, "open", open_full):
        done = run("export", store, "n", "--to", tmp_path / "f.csv")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "No space on the disk" in done.err
    assert os.listdir(tmp_path) == []


def test_text_on_a_terminal_has_no_control_characters(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", pa.schema({"k": pa.string()}), primary_key="k")
        table.upsert({"k": "é\x1b[31m\u202e"})
    with mock.patch("kvstore.cli.export.target.sys") as patched, mock.patch("kvstore.cli.printing.sys", patched):
        patched.stdout.isatty.return_value = True
        patched.stdout.buffer = io.BytesIO()
        fine("export", tmp_path / "store", "t", "--format", "csv")
        assert patched.stdout.buffer.getvalue().decode() == 'k\n"é\\x1b[31m\\u202e"\n'
    assert fine("export", tmp_path / "store", "t", "--format", "csv").out == 'k\n"é\x1b[31m\u202e"\n'


def test_what_python_removes_after_an_export_says_nothing(tmp_path: Path) -> None:
    with replaced(tmp_path / "f", Files()) as sink:
        sink.write(b"whole")
    sink.flush()  # as the finalizer does, of which errors are printed by Python 3.13
    assert (tmp_path / "f").read_bytes() == b"whole"


def test_the_end_of_a_compressed_file_is_there(store: Path, tmp_path: Path) -> None:
    fine("export", store, "n", "--to", tmp_path / "f.CSV.GZ")
    assert gzip.decompress((tmp_path / "f.CSV.GZ").read_bytes()).count(b"\n") == 19


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("t",), "--format"),
        (("t", "--to", "{tmp}/f.txt"), "--format"),
        (("t", "--to", "{tmp}/f.parquet.gz"), "compresses itself"),
        (("t", "--to", "{tmp}/nowhere/f.csv"), "check the directory"),
        (("t", "--to", "{tmp}", "--format", "csv"), "regular file"),
        (("t", "--to", "{store}/STORE", "--format", "csv"), "directory of the store"),
        (("t", "--format", "xml"), "--format"),
        (("t", "--format", "csv", "--json"), "--to"),
        (("t", "--format", "csv", "--start", "1"), "--changelog"),
        (("t", "--format", "csv", "--changelog", "--where", "c1 = 1"), "--where"),
        (("t", "--format", "csv", "--changelog", "--as-of", "1"), "--as-of"),
        (("t", "--format", "csv", "--columns", "x"), "column"),
        (("nope", "--format", "csv"), "no such table"),
        (("t", "--format", "csv", "--changelog", "--start", "99"), "99"),
    ],
)
def test_wrong_calls_write_nothing(store: Path, tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    done = run("export", store, *(argument.format(tmp=tmp_path, store=store) for argument in arguments))
    assert done.code == 2
    assert word in done.err
    assert done.out == ""
    assert os.listdir(tmp_path) == []


def test_links_in_a_loop_are_not_replaced(store: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    one.symlink_to(other)
    other.symlink_to(one)
    done = run("export", store, "t", "--to", one)
    assert (done.code, done.out) == (2, "")
    assert "loop" in done.err
    assert one.readlink() == other
    assert other.readlink() == one


def test_formats_of_bytes_are_not_for_a_terminal(store: Path) -> None:
    with mock.patch("kvstore.cli.export.command.sys") as patched:
        patched.stdout.isatty.return_value = True
        done = run("export", store, "n", "--format", "parquet")
    assert (done.code, done.out) == (2, "")
    assert "not for a terminal" in done.err
