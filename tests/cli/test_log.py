"""``log ls`` and ``log show``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from tests.cli.commands import fine, process, run

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.string())])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing here writes it."""
    path = tmp_path_factory.mktemp("log") / "store"
    with kvstore.open(path, segment_bytes_max=1000) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        for k in range(6):
            table.upsert({"k": k % 4, "v": f"v{k}"})
        writer = store.new_writer_id()
        table.bucket(0).apply(kvstore.Changes.of([], SCHEMA), writer_id=writer, sequence=0, writer_epoch=3)
        store.create_table("empty", SCHEMA)
    return path


def test_segments_are_listed(store: Path) -> None:
    (found,) = fine("log", "ls", store, "t", "--json").lines
    files = sorted((store / "tables/1/0/log").glob("*.log"))
    assert len(files) > 2
    assert [each["segment"] for each in found] == [path.name for path in files]
    assert [each["bytes"] for each in found] == [path.stat().st_size for path in files]
    assert sum(each["batches"] for each in found) == 7
    assert [each["end_offset"] for each in found[:-1]] == [each["base_offset"] for each in found[1:]]
    assert (found[0]["base_offset"], found[-1]["end_offset"]) == (0, 9)
    headers = fine("log", "show", store, "t", "--json").lines
    assert found[0]["first_time"] == headers[0]["time"]
    assert found[-1]["last_time"] == headers[-1]["time"]
    assert len(fine("log", "ls", store, "t").out.splitlines()) == len(files) + 2


def test_an_empty_log_has_a_segment(store: Path) -> None:
    (found,) = fine("log", "ls", store, "empty", "--json").lines
    assert [(each["base_offset"], each["end_offset"], each["batches"], each["first_time"]) for each in found] == [
        (0, 0, 0, None)
    ]
    assert "null" in fine("log", "ls", store, "empty").out
    assert fine("log", "show", store, "empty").out == ""


def test_batch_headers_are_shown(store: Path) -> None:
    found = fine("log", "show", store, "t", "--json").lines
    assert [(each["base_offset"], each["last_offset"], each["records"]) for each in found] == [
        *((0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 5, 2), (6, 7, 2), (8, 8, 0)),
    ]
    assert [found[0][name] for name in ("writer_id", "sequence", "epoch", "attributes")] == [-1, -1, 0, []]
    assert [found[-1][name] for name in ("writer_id", "sequence", "epoch")] == [2**62, 0, 3]
    assert [each["base_offset"] for each in fine("log", "show", store, "t", "--from", "5", "--json").lines] == [4, 6, 8]
    assert len(fine("log", "show", store, "t", "--from", "1", "--limit", "2").out.splitlines()) == 4
    assert fine("log", "show", store, "t", "5", "--json").lines == [found[4]]


def test_one_batch_is_decoded(store: Path) -> None:
    (found,) = fine("log", "show", store, "t", "5", "--records", "--json").lines
    assert found["changes"] == [
        {"_log_offset": 4, "_change_type": "update_preimage", "k": 0, "v": "v0"},
        {"_log_offset": 5, "_change_type": "update_postimage", "k": 0, "v": "v4"},
    ]
    printed = fine("log", "show", store, "t", "4", "--records").out
    assert "base_offset  4\n" in printed
    assert printed.endswith(
        "_log_offset  _change_type  k  v\n-----------  ------------  -  --\n"
        "          4  -U            0  v0\n          5  +U            0  v4\n\n"
    )
    (empty,) = fine("log", "show", store, "t", "8", "--records", "--json").lines
    assert empty["changes"] == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("show", "t", "9"), "log_end=9"),
        (("show", "t", "--from", "10"), "log_end=9"),
        (("show", "t", "1", "--from", "1"), "not both"),
        (("show", "empty", "0"), "log_end=0"),
        (("show", "nope"), "no such table"),
        (("ls", "nope"), "no such table"),
        (("sl", "t"), "No such command"),
    ],
)
def test_a_bad_call(store: Path, arguments: tuple[str, ...], word: str) -> None:
    command, *rest = arguments
    done = run("log", command, store, *rest)
    assert (done.code, done.out) == (2, "")
    assert word in done.err


def test_damage_is_named_after_what_stands_before_it(store: Path, tmp_path: Path) -> None:
    store = shutil.copytree(store, tmp_path / "store")
    segment = sorted((store / "tables/1/0/log").glob("*.log"))[0]
    batches = [each for each in fine("log", "show", store, "t", "--json").lines if each["segment"] == segment.name]
    data = bytearray(segment.read_bytes())
    data[batches[-1]["position"] + 300] ^= 1
    segment.write_bytes(data)
    done = run("log", "show", store, "t", "--json")
    assert done.code == 1
    assert len(done.lines) == len(batches) - 1
    assert "fails its checksum" in done.err
    assert run("log", "ls", store, "t").code == 0
    data[batches[-1]["position"] + 12] = 9
    segment.write_bytes(data)
    done = run("log", "ls", store, "t")
    assert (done.code, done.out) == (1, "")
    assert f"path={segment}" in done.err


def test_a_log_is_shown_while_another_process_writes_it(store: Path, tmp_path: Path) -> None:
    store = shutil.copytree(store, tmp_path / "store")
    with kvstore.open(store) as writing:
        table = writing.table("t")
        table.upsert({"k": 9, "v": "new"})
        table.flush()
        other = process("log", "show", store, "t", "--from", "9", "--records", "--json")
        out, err = other.communicate(timeout=600)
        table.upsert({"k": 10, "v": "newer"})
    assert (other.returncode, err) == (0, "")
    assert json.loads(out)["changes"] == [{"_log_offset": 9, "_change_type": "insert", "k": 9, "v": "new"}]


def test_the_logs_of_several_buckets(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=3)
        table.upsert([{"k": k, "v": ""} for k in range(9)])
        ends = [end for _, end in table.offsets().values()]
    (found,) = fine("log", "ls", path, "t", "--json").lines
    assert [(each["bucket"], each["end_offset"]) for each in found] == list(enumerate(ends))
    (found,) = fine("log", "ls", path, "t", "--bucket", 1, "--json").lines
    assert [each["bucket"] for each in found] == [1]
    (batch,) = fine("log", "show", path, "t", 0, "--bucket", 2, "--records", "--json").lines
    assert batch["last_offset"] == ends[2] - 1
    assert len(batch["changes"]) == ends[2]
    for arguments in (("show", path, "t"), ("show", path, "t", "--bucket", 3), ("ls", path, "t", "--bucket", -1)):
        done = run("log", *arguments)
        assert (done.code, "bucket" in done.err) == (2, True)
