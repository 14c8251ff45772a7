"""Reopening a log: torn tails, lost and damaged indexes, and the state of writers afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.disk.files import Files
from kvstore.log import recovery
from kvstore.log.segments import LogEnd, LogFiles
from kvstore.log.writer_state import WriterStates
from logformat import paths
from logformat.ids import Offset
from logformat.log import sparse_index
from logformat.log.batch import decode_header
from logformat.log.sparse_index import Entry
from tests.conformance.bucket import Bucket
from tests.conformance.vectors import VECTORS, running
from tests.support.logs import IDENTITY, append, batch, open_log

KINDS = ("recovery",)
WITH_WRITERS = [name for name in running(*KINDS) if "writer_snapshots" in VECTORS[name]["expect"]]
WITH_INDEXES = [name for name in running(*KINDS) if "indexes" in VECTORS[name]["expect"]]


def test_every_vector_has_its_runner() -> None:
    assert {*WITH_WRITERS, *WITH_INDEXES} == set(running(*KINDS))


@pytest.mark.parametrize("synced", [False, True], ids=["index lost", "index kept"])
@pytest.mark.parametrize("name", WITH_INDEXES)
def test_sparse_indexes(name: str, synced: bool, tmp_path: Path) -> None:
    """They are repaired whether or not the search for the log's end reads their segments.

    The test looks up a timestamp for every offset, also where the vector asks only for indexes: it is their purpose.
    """
    vector = VECTORS[name]
    expected = vector["expect"]
    count = int(re.match(r"\d+", vector["setup"])[0])  # type: ignore[index]
    log = open_log(tmp_path, segment_bytes_max=4000)
    append(log, count)  # their timestamps are their offsets
    log.close()
    before = indexes(tmp_path)
    assert len(before) > 3
    assert all(before.values())
    for words in vector["damage"]:
        damage(tmp_path, words, log.end)
    end = recovery.prepare(tmp_path, IDENTITY, log.end if synced else None, Files())
    assert end == log.end
    assert end.offset == expected["log_end_offset"]
    assert paths.segment_file(tmp_path, end.base).stat().st_size == end.position
    assert expected["indexes"] in ("sane", "rebuilt")
    assert indexes(tmp_path) == before
    assert sorted(tmp_path.glob("*.index")) == [paths.sparse_index_file(tmp_path, base) for base in before]
    for base, entries in before.items():
        assert paths.sparse_index_file(tmp_path, base).read_bytes() == sparse_index.encode(entries)
    files = LogFiles(tmp_path, IDENTITY)
    assert [files.first_at_or_after(time, end.offset) for time in range(count)] == list(range(count))
    again = open_log(tmp_path)
    append(again, 1)
    last = list(LogFiles(tmp_path, IDENTITY).batches(end.offset, again.end.offset))
    assert [found.header.base_offset for found in last] == [expected.get("next_append_offset", count)]


def indexes(directory: Path) -> dict[Offset, list[Entry]]:
    log = LogFiles(directory, IDENTITY)
    return {base: log.segment(base).sparse_index() for base in log.bases()}


def damage(directory: Path, words: str, end: LogEnd) -> None:
    """Apply a vector's damage to the files."""
    if words == "delete every index file":
        for path in directory.glob("*.index"):
            path.unlink()
        return
    found = re.fullmatch(r"append (\d+) (?:(zero) bytes|bytes 00\.\.0b) to (every index file|the active \.log)", words)
    assert found is not None, words
    tail = bytes(int(found[1])) if found[2] else bytes(range(int(found[1])))
    active = paths.segment_file(directory, end.base)
    for path in [active] if found[3] == "the active .log" else directory.glob("*.index"):
        path.write_bytes(path.read_bytes() + tail)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    bucket = Bucket(tmp_path)
    yield bucket
    bucket.path.close()


@pytest.mark.parametrize("name", WITH_WRITERS)
def test_writers(name: str, bucket: Bucket) -> None:
    """Fluss writes a snapshot at a roll and at close; the index corresponds to the latter."""
    vector = VECTORS[name]
    build(bucket, vector["setup"])
    bucket.reopen()
    assert bucket.snapshots() == vector["expect"]["writer_snapshots"]
    writers = vector["expect"].get("active_writers", bucket.active_writers())
    assert bucket.active_writers() == writers
    for writer, sequence in writers.items():
        assert bucket.append(int(writer), sequence).duplicated
        assert not bucket.append(int(writer), sequence + 1).duplicated


def build(bucket: Bucket, setup: str) -> None:
    """Build the log that a vector describes, and close it."""
    alternating = re.fullmatch(
        r"(\d+) one-record batches alternating writers ([\d,]+), roll after each; one record without writer; close",
        setup,
    )
    if alternating is not None:
        writers = [int(writer) for writer in alternating[2].split(",")]
        for number in range(int(alternating[1])):
            bucket.append(writers[number % len(writers)], number // len(writers))
            bucket.path.roll()
        bucket.append()
        bucket.close()
        return
    if setup.startswith("follower appends writer "):
        follow(bucket, *re.fullmatch(r"follower appends writer (\d+) seq ([\d,| rol]+); close", setup).groups())  # type: ignore[union-attr]
        return
    parts = re.fullmatch(r"([seq\d,| rol]+); close -> snapshots [\d,]+; create empty snapshot file (\d+)", setup)
    assert parts is not None, setup
    for word in re.findall(r"roll|seq\d+", parts[1]):
        if word == "roll":
            bucket.path.roll()
        else:
            bucket.append(1, int(word.removeprefix("seq")))
    bucket.close()
    paths.writers_file(bucket.paths.log, Offset(int(parts[2]))).touch()


def follow(bucket: Bucket, writer: str, steps: str) -> None:
    """Append batches with given offsets, as a follower does; the index does not see them."""
    bucket.close()
    log, states = open_log(bucket.paths.log), WriterStates({})
    for step in re.findall(r"roll|\d+", steps):
        if step == "roll":
            log.roll(states.snapshot(log.end.offset))
            continue
        taken = batch(log.end.offset, writer=int(writer), sequence=int(step))
        states.remember(decode_header(b"".join(taken.pieces)))
        log.append([taken])
        log.sync()
    log.close()
