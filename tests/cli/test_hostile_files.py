"""Files that unpack to much more than they are: an error that names the limit, little memory, and a clean end."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import kvstore
from kvstore.ingest import formats
from tests.cli.commands import Done, fine, run, spawned

MIB = b"a" * (1 << 20)
IN_TURN = """
import contextlib, io, json, sys
from kvstore.cli.main import main
for command in json.loads(sys.argv[1]):
    sys.argv, errors = ["kvstore", *command], io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            main()
    except SystemExit as end:
        print(json.dumps([end.code, errors.getvalue()]))
line = next(each for each in open("/proc/self/status") if each.startswith("VmHWM"))
print(int(line.split()[1]) >> 10)
sys.exit()
"""
"""A script that runs commands, and prints how each ended, and the most memory that its process had (MiB)."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with kvstore.open(path) as opened:
        opened.create_table("t", {"k": "int64", "v": "string"}, primary_key="k")
    return path


def unpacking(path: Path, before: bytes, mib: int, after: bytes = b"", repeated: bytes = MIB) -> Path:
    """A compressed file of ``before``, about so many MiB of the same, and ``after``."""
    path.write_bytes(gzip.compress(before) + _packed(repeated) * (mib // 64) + gzip.compress(after))
    return path


@cache
def _packed(repeated: bytes) -> bytes:
    return gzip.compress(repeated * 64)


def in_process(*arguments: object, script: str = "") -> Done:
    with spawned(*arguments, script=script) as running:
        out, err = running.communicate()
        return Done(running.returncode, out, err)


def in_turn(*commands: list[object]) -> list[Any]:
    """How commands of one process end: exit code and errors of each, and then its peak of memory (MiB)."""
    done = in_process(json.dumps(commands, default=str), script=IN_TURN)
    assert done.code == 0, done.err
    return done.lines


HOSTILE = {
    "row.csv.gz": (b"k,v\n1,", b"\n"),
    "quoted.csv.gz": (b'k,v\n1,"', b'"\n'),
    "open.csv.gz": (b'k,v\n1,"', b""),
    "header.csv.gz": (b"k,", b"\n1,2\n"),
    "line.jsonl.gz": (b'{"k":1,"v":"', b'"}\n'),
    "array.json.gz": (b'[{"k":1,"v":"', b'"}]'),
}


@pytest.mark.parametrize("is_array", [False, True], ids=["by row", "whole"])
def test_what_is_longer_than_a_limit_is_refused_with_little_memory(store: Path, tmp_path: Path, is_array: bool) -> None:
    """One process takes them one after the other: its peak of memory is the highest of all."""
    limits = {"csv": formats.CSV_BLOCK_BYTES, "jsonl": formats.LINE_BYTES_MAX}
    commands, expected = [], []
    for name, (before, after) in HOSTILE.items():
        if is_array == name.startswith("array"):
            file = unpacking(tmp_path / name, before, 640, after)
            limit = limits.get(name.split(".")[1], "")
            for command in ("load", "upsert") if name == "line.jsonl.gz" else ("load",):
                commands.append([command, store, "t", file])
                expected.append(f"bytes_max={limit}")
    *outcomes, peak = in_turn(*commands)
    for (code, error), words in zip(outcomes, expected, strict=True):
        assert code == 2, error
        assert words in error
        assert len(error) < 1000
    assert peak < 600 + 400 * is_array


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "repeated"), [(b"k,v\n1,", MIB), (b"k,v\nno number,a\n", b"1,abcdef\n" * (1 << 17))]
)
def test_a_file_that_is_refused_ends_the_process_cleanly(
    store: Path, tmp_path: Path, before: bytes, repeated: bytes
) -> None:
    """A thread that still reads the file when the process ends would abort it."""
    file = unpacking(tmp_path / "f.csv.gz", before, 3072, repeated=repeated)
    for _ in range(10):
        done = in_process("load", store, "t", file)
        assert (done.code, done.out) == (2, "")
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", ["load", "upsert"])
def test_rows_up_to_the_limit_are_taken_and_the_row_after_it_is_named(
    store: Path, tmp_path: Path, command: str
) -> None:
    file, rows = tmp_path / "f.jsonl", [json.dumps({"k": k, "v": "x" * (70 if k < 5 else 100)}) for k in range(8)]
    file.write_text("\n".join(["", *rows[:3], "", *rows[3:]]))
    with mock.patch.object(formats, "LINE_BYTES_MAX", 100):
        done = run(command, store, "t", file)
    assert done.code == 2
    assert "longer than the limit" in done.err
    assert "row=6" in done.err
    assert "bytes_max=100" in done.err
    with kvstore.open(store, read_only=True) as opened:
        assert opened.table("t").count() == 0, "the batch that has it is not there"
    with mock.patch.object(formats, "LINE_BYTES_MAX", 120):
        fine(command, store, "t", file)
    with kvstore.open(store, read_only=True) as opened:
        assert opened.table("t").count() == 8


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_the_columns_of_a_new_table_are_not_looked_for_in_a_row_without_an_end(
    store: Path, tmp_path: Path, suffix: str
) -> None:
    file = unpacking(tmp_path / f"f.{suffix}.gz", *((b"k,v\n1,", 128) if suffix == "csv" else (b'{"k":"', 128)))
    done = run("load", store, "new", file, "--key", "k")
    assert done.code == 2
    assert "longer than the limit" in done.err


@pytest.mark.parametrize("name", ["f.csv", "f.jsonl"])
@pytest.mark.parametrize("table", ["t", "new"])
def test_columns_without_number_are_counted_and_not_listed(store: Path, tmp_path: Path, name: str, table: str) -> None:
    file = tmp_path / name
    columns = [f"c{number}" for number in range(5000)]
    text = ",".join(columns) + "\n" if name.endswith("csv") else json.dumps(dict.fromkeys(columns, 1))
    file.write_text(text + ",".join("1" * 5000) + "\n" if name.endswith("csv") else text)
    done = run("load", store, table, file, *(["--key", "c1"] if table == "new" else []))
    assert done.code == 2
    assert "columns=5000 columns_max=4096" in done.err
    assert len(done.err) < 1000


def test_an_old_macintosh_file_has_rows_too(store: Path, tmp_path: Path) -> None:
    """Its rows end with carriage returns: all of it is one line by line feeds."""
    file = tmp_path / "f.csv"
    file.write_bytes(b"k,v\r" + b"".join(b"%d,abcdefgh\r" % k for k in range(2000)))
    with mock.patch.object(formats, "CSV_BLOCK_BYTES", 4000):
        fine("load", store, "t", file)
    with kvstore.open(store, read_only=True) as opened:
        assert opened.table("t").count() == 2000


@pytest.mark.parametrize("depth", [200, 2_000, 50_000])
@pytest.mark.parametrize("end", ["]", ""], ids=["whole", "cut off"])
def test_values_that_lie_very_deep_are_refused(store: Path, tmp_path: Path, depth: int, end: str) -> None:
    """Arrow, which infers the columns of a new table, would end the process."""
    file = tmp_path / "deep.jsonl"
    file.write_text(f'{{"k": 1, "v": {"[" * depth}{end * depth}{"}" if end else ""}\n')
    done = run("load", store, "new", file, "--key", "k")
    assert done.code == 2
    assert "deeper within each other" in done.err or "can't be read" in done.err


@pytest.mark.parametrize("table", ["new", "t"])
@pytest.mark.parametrize("depth", [2_000, 50_000])
def test_values_that_lie_very_deep_in_an_array_are_refused(store: Path, tmp_path: Path, table: str, depth: int) -> None:
    file = tmp_path / "deep.json"
    file.write_text(f'[{{"k": 1, "v": {"[" * depth}{"]" * depth}}}]')
    done = run("load", store, table, file, *(["--key", "k"] if table == "new" else []))
    assert done.code == 2
    # How deep Python's own JSON goes differs by version; what it can read is of a type that the column has not.
    assert "deeper within each other" in done.err or (table == "t" and "a different type than the column" in done.err)
