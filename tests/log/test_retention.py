"""Segments are removed whole, oldest first, without leaving a hole; readers of removed segments get an error."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from kvstore.disk.files import Files
from kvstore.errors import CorruptBatch, OffsetOutOfRange
from kvstore.log import recovery
from kvstore.log.retention import expired_before, needed_from, remove_before
from kvstore.log.segments import LogEnd, LogFiles
from logformat import paths
from logformat.ids import Offset, Position
from tests.support.disks import FailingDisk, failing
from tests.support.logs import IDENTITY, append, open_log

BASES = [0, 3, 6, 9]


@pytest.fixture
def log(tmp_path: Path) -> LogFiles:
    """A log of segments of three batches each, the last with one; a batch's timestamp is its offset."""
    opened = open_log(tmp_path, segment_bytes_max=3 * 400)
    while len(bases(tmp_path)) < len(BASES):
        append(opened, 1)
    opened.close()
    assert bases(tmp_path) == BASES
    return LogFiles(tmp_path, IDENTITY)


def expired(log: LogFiles, **limits: Any) -> Offset:
    last = log.bases()[-1]
    end = LogEnd(last, Position(log.segment(last).size), Offset(last + 1))
    return expired_before(log, end, **limits)


def bases(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(("older_than", "expected"), [(0, 0), (2, 0), (3, 3), (5, 3), (6, 6), (8, 6), (9, 9), (99, 9)])
def test_a_segment_expires_with_its_last_change(log: LogFiles, older_than: int, expected: int) -> None:
    assert expired(log, older_than_ms=older_than) == expected


@pytest.mark.parametrize("harm", ["gone", "empty", "wrong"])
def test_a_wrong_sparse_index_does_not_affect_expiry(log: LogFiles, tmp_path: Path, harm: str) -> None:
    for path in tmp_path.glob("*.index"):
        data = path.read_bytes()
        path.unlink()
        if harm != "gone":
            path.write_bytes(b"" if harm == "empty" else data[:16] + data[-24:] * 3)
    assert [expired(log, older_than_ms=time) for time in (2, 3, 8)] == [0, 3, 6]


def test_a_segment_expires_when_later_ones_reach_the_size_limit(log: LogFiles) -> None:
    sizes = [log.segment(Offset(base)).size for base in BASES]
    for count in range(len(BASES)):
        left = sum(sizes[count:])
        assert expired(log, older_than_ms=None, bytes_max=left) == BASES[count]
        assert expired(log, older_than_ms=None, bytes_max=left + 1) == BASES[max(count - 1, 0)]
    assert expired(log, older_than_ms=None, bytes_max=1) == BASES[-1]
    assert expired(log, older_than_ms=None) == 0
    assert expired(log, older_than_ms=3, bytes_max=sum(sizes[2:])) == BASES[2]


def test_zeros_after_the_end_do_not_count(log: LogFiles, tmp_path: Path) -> None:
    sizes = [log.segment(Offset(base)).size for base in BASES]
    end = LogEnd(Offset(9), Position(sizes[-1]), Offset(10))
    with paths.segment_file(tmp_path, Offset(9)).open("ab") as file:
        file.write(bytes(100_000))
    log = LogFiles(tmp_path, IDENTITY)
    assert expired_before(log, end, older_than_ms=None, bytes_max=sum(sizes[1:]) + 1) == 0
    assert expired_before(log, end, older_than_ms=None, bytes_max=sum(sizes[1:])) == 3


def test_a_damaged_segment_does_not_expire(log: LogFiles, tmp_path: Path) -> None:
    path = paths.segment_file(tmp_path, Offset(3))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatch):
        expired(log, older_than_ms=99)


def test_segments_needed_by_a_recovery_are_kept() -> None:
    def end(base: int) -> LogEnd:
        return LogEnd(Offset(base), Position(500), Offset(base + 50))

    assert needed_from(end(200), end(300)) == 200
    assert needed_from(end(300), end(200)) == 200


@pytest.mark.parametrize("offset", range(12))
def test_segments_before_an_offset_are_removed_with_their_files(log: LogFiles, tmp_path: Path, offset: int) -> None:
    kept = [base for base in BASES if base <= offset][-1]
    start = remove_before(tmp_path, log, Offset(offset), Files())
    assert start == kept == log.start()
    assert {int(path.stem) for path in tmp_path.iterdir()} == {base for base in BASES if base >= kept}
    found = [batch.header.base_offset for batch in log.batches(start, Offset(10))]
    assert found == list(range(kept, 10))
    for before in range(kept):
        with pytest.raises(OffsetOutOfRange):
            next(log.batches(Offset(before), Offset(10)))


def test_each_removal_is_durable_before_the_next(log: LogFiles, tmp_path: Path) -> None:
    """Otherwise a power cut might restore one segment and not the one after it."""
    gone: list[list[int]] = []

    class Watched(Files):
        def remove(self, path: Path) -> None:
            super().remove(path)
            if path.suffix == ".log":
                gone.append([int(path.stem)])

        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            gone.append([])

    remove_before(tmp_path, log, Offset(9), Watched())
    assert gone == [[0], [], [3], [], [6], []]


def test_a_failing_disk_leaves_no_hole(log: LogFiles, tmp_path: Path) -> None:
    disk = FailingDisk()
    for after in range(3):
        disk.fail = failing("sync_directory", errno.EIO, after=0)
        with pytest.raises(OSError, match="error"):
            remove_before(tmp_path, log, Offset(9), disk)
        assert bases(tmp_path) == BASES[after + 1 :]
    assert [found.header.base_offset for found in log.batches(Offset(9), Offset(10))] == [9]
    left = {int(path.stem) for path in tmp_path.glob("*.index")}
    assert left > {9}
    recovery.prepare(tmp_path, IDENTITY, LogEnd(Offset(9), Position(64), Offset(9)), Files())
    assert {int(path.stem) for path in tmp_path.iterdir()} == {9}


def test_readers_of_expired_segments_continue_or_get_an_error(log: LogFiles, tmp_path: Path) -> None:
    """A reader in a segment reads it to its end; if later ones are removed too, they are out of range."""
    reader = LogFiles(tmp_path, IDENTITY)
    batches = reader.batches(Offset(1), Offset(10))
    assert next(batches).header.base_offset == 1
    remove_before(tmp_path, log, Offset(9), Files())
    assert next(batches).header.base_offset == 2
    with pytest.raises(OffsetOutOfRange, match="log_start=9"):
        list(batches)


def test_a_missing_segment_that_did_not_expire_is_damage(log: LogFiles, tmp_path: Path) -> None:
    batches = log.batches(Offset(0), Offset(10))
    next(batches)
    paths.segment_file(tmp_path, Offset(6)).unlink()
    with pytest.raises(CorruptBatch, match="missing"):
        list(batches)
