"""Appending, rolling, reading by offset and by time, and failing disks."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings, strategies as st

from kvstore.errors import CorruptBatch, LogFailed, OffsetOutOfRange, StoreFull
from kvstore.log.segments import LogFiles
from logformat import paths
from logformat.ids import Offset
from logformat.log import sparse_index
from tests.support.disks import FailingDisk, failing
from tests.support.logs import IDENTITY, append, batch, offsets, open_log, read

LAST_OFFSET_DELTA, RECORD_COUNT = 20, 48
"""Where they are in a batch of magic 3."""


def test_appended_batches_are_read(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([batch(0, 3), batch(3, 0), batch(4, 2)])
    log.sync()
    assert [(found.header.base_offset, found.header.last_offset) for found in read(tmp_path)] == [
        (0, 2),
        (3, 3),
        (4, 5),
    ]
    assert log.end.offset == log.durable.offset == 6


def test_batches_of_several_segments_form_one_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes_max=1500)
    append(log, 20)
    assert len(LogFiles(tmp_path, IDENTITY).bases()) > 3
    assert offsets(tmp_path) == list(range(20))
    assert offsets(tmp_path, 7, 12) == list(range(7, 12))


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=30), data=st.data())
def test_a_read_from_any_offset_begins_with_the_batch_that_contains_it(
    sizes: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = open_log(directory, segment_bytes_max=1500)
    holder: list[int] = []
    for records in sizes:
        holder += [log.end.offset] * max(records, 1)
        append(log, 1, records)
    start = data.draw(st.integers(0, len(holder) - 1))
    end = data.draw(st.integers(start + 1, len(holder)))
    assert offsets(directory, start, end) == sorted(set(holder[start:end]))


def test_reading_uses_the_sparse_index_and_does_not_need_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 600, 8, together=10)
    log.close()
    path = paths.sparse_index_file(tmp_path, Offset(0))
    assert len(sparse_index.decode(path.read_bytes())) > 2
    assert offsets(tmp_path, 2000)[0] == 2000
    path.write_bytes(path.read_bytes()[:-1].replace(b"\0", b"\1"))
    assert offsets(tmp_path, 2000)[0] == 2000
    path.unlink()
    assert offsets(tmp_path, 2000)[0] == 2000


def test_a_wrong_sparse_index_entry_costs_only_time(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 10)
    wrong = sparse_index.Entry(Offset(4), 4, read(tmp_path)[7].position)
    paths.sparse_index_file(tmp_path, Offset(0)).write_bytes(sparse_index.encode([wrong]))
    assert offsets(tmp_path, 5)[0] == 5


def test_a_read_by_time_begins_with_the_first_batch_not_older(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes_max=20_000)
    append(log, 200, 2)  # timestamps are base offsets: 0, 2, 4 …
    files = LogFiles(tmp_path, IDENTITY)
    assert len(files.bases()) > 2
    for timestamp in range(-1, 402):
        expected = min(timestamp + timestamp % 2, 400) if timestamp > 0 else 0
        assert files.first_at_or_after(timestamp, Offset(400)) == expected


def test_an_empty_segment_is_not_rolled(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.roll(b"")
    assert LogFiles(tmp_path, IDENTITY).bases() == [0]
    append(log, 2)
    log.roll(b"new")
    log.roll(b"never written")
    assert LogFiles(tmp_path, IDENTITY).bases() == [0, 2]
    assert paths.writers_file(tmp_path, Offset(2)).read_bytes() == b"new"
    append(log, 2)
    assert offsets(tmp_path) == [0, 1, 2, 3]


def test_offsets_outside_of_the_log_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes_max=1500)
    append(log, 10)
    paths.segment_file(tmp_path, Offset(0)).unlink()
    with pytest.raises(OffsetOutOfRange, match="log_start="):
        offsets(tmp_path, 0, 5)


def test_a_split_covers_the_range_and_cuts_between_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes_max=500_000)
    append(log, 6000, 8, together=100)
    parts = LogFiles(tmp_path, IDENTITY).split(Offset(100), Offset(47_000), 4)
    assert len(parts) == 4
    assert (parts[0][0], parts[-1][1]) == (100, 47_000)
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    assert all(cut % 8 == 0 for cut, _ in parts[1:])
    sizes = [last - first for first, last in parts]
    assert max(sizes) < 2 * min(sizes)


def test_a_small_range_is_not_split(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 10)
    assert LogFiles(tmp_path, IDENTITY).split(Offset(2), Offset(9), 4) == [(2, 9)]
    assert LogFiles(tmp_path, IDENTITY).split(Offset(3), Offset(3), 4) == [(3, 3)]


class TestRefusingDisk:
    @pytest.mark.parametrize("short", [0, 1, 100, 128, 200])
    def test_a_short_write_is_truncated_and_the_log_continues(self, tmp_path: Path, short: int) -> None:
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        append(log, 3)
        size = paths.segment_file(tmp_path, Offset(0)).stat().st_size
        disk.fail, disk.short = failing("write", errno.ENOSPC), short
        with pytest.raises(StoreFull):
            log.append([batch(3)])
        assert paths.segment_file(tmp_path, Offset(0)).stat().st_size == size
        append(log, 3)
        assert offsets(tmp_path) == list(range(6))

    def test_a_short_write_that_can_not_be_truncated_ends_the_log(self, tmp_path: Path) -> None:
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        append(log, 3)
        disk.short = 100
        disk.fail = lambda call: errno.ENOSPC if call in ("write", "truncate") else 0
        with pytest.raises(LogFailed):
            log.append([batch(3)])
        disk.fail = lambda _: 0
        with pytest.raises(LogFailed):
            log.append([batch(3)])
        log.close()
        again = open_log(tmp_path)
        assert again.end.offset == 3
        append(again, 1)
        assert offsets(tmp_path) == [0, 1, 2, 3]

    def test_after_a_failed_sync_the_file_is_never_written_again(self, tmp_path: Path) -> None:
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        append(log, 3)
        sealed_at = log.durable.position
        log.append([batch(3, durable_end=3), batch(4, durable_end=3)])
        disk.fail = failing("sync")
        log.sync()
        first = paths.segment_file(tmp_path, Offset(0))
        # The kernel may have dropped pages that it could not write: nothing after the seal is reliable.
        first.write_bytes(first.read_bytes()[:sealed_at] + b"\xff" * 300)
        assert log.durable.offset == 5
        append(log, 2)
        log.close()
        assert LogFiles(tmp_path, IDENTITY).bases() == [0, 3]
        assert offsets(tmp_path) == list(range(7))
        assert open_log(tmp_path).end.offset == 7

    @pytest.mark.parametrize("call", ["write", "rename", "sync_directory"])
    @pytest.mark.parametrize("passing", range(2))
    def test_a_failed_sync_on_a_full_disk_keeps_the_unsynced_batches(
        self, tmp_path: Path, call: str, passing: int
    ) -> None:
        """A new segment has no room for its head, or for the unsynced batches; once there is room, all are there."""
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        append(log, 3)
        log.append([batch(3, durable_end=3), batch(4, durable_end=3)])
        no_sync, no_space = failing("sync"), failing(call, errno.ENOSPC, after=passing)
        disk.fail = lambda asked: no_sync(asked) or no_space(asked)
        try:
            log.sync()
        except StoreFull:
            assert log.durable.offset == 3
        assert log.end.offset == 5
        disk.fail = lambda _: 0
        log.sync()
        assert log.durable.offset == 5
        append(log, 1)
        log.close()
        assert offsets(tmp_path) == list(range(6))
        assert open_log(tmp_path).end.offset == 6

    def test_a_failed_sync_leaves_no_writers_of_a_roll_that_went_no_further(self, tmp_path: Path) -> None:
        """Where they are, bytes after the end of the segment before are a finding."""
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        append(log, 3)
        disk.fail = failing("rename", errno.ENOSPC, after=1)  # the writer snapshot passes
        with pytest.raises(StoreFull):
            log.roll(b"")
        log.close()
        assert paths.writers_file(tmp_path, Offset(3)).exists()
        log = open_log(tmp_path, disk)
        log.append([batch(3, durable_end=3)])
        disk.fail = failing("sync")
        log.sync()
        assert LogFiles(tmp_path, IDENTITY).bases() == [0, 3]
        assert not paths.writers_file(tmp_path, Offset(3)).exists()

    def test_a_failed_sync_of_a_fresh_segment_replaces_it(self, tmp_path: Path) -> None:
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        append(log, 3)
        log.roll(b"")
        log.append([batch(3, durable_end=3)])
        disk.fail = failing("sync")
        log.sync()
        append(log, 1)
        log.close()
        assert LogFiles(tmp_path, IDENTITY).bases() == [0, 3]
        assert offsets(tmp_path) == list(range(5))
        assert open_log(tmp_path).end.offset == 5

    def test_a_disk_that_fails_twice_ends_the_log(self, tmp_path: Path) -> None:
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        append(log, 3)
        log.append([batch(3, durable_end=3)])
        disk.fail = failing("sync", times=100)
        with pytest.raises(LogFailed):
            log.sync()
        disk.fail = lambda _: 0
        with pytest.raises(LogFailed):
            log.sync()
        assert log.durable.offset == 3
        log.close()
        assert open_log(tmp_path).end.offset in (3, 4)

    @pytest.mark.parametrize("call", ["write", "sync", "rename"])
    def test_no_space_for_a_new_segment_leaves_the_old_one(self, tmp_path: Path, call: str) -> None:
        disk = FailingDisk()
        log = open_log(tmp_path, disk, segment_bytes_max=1000)
        append(log, 4)
        # The writer snapshot fails, then the segment; between them the sparse index is synced.
        for passing in (0, 2 if call == "sync" else 1):
            disk.fail = failing(call, errno.ENOSPC, after=passing)
            with pytest.raises(StoreFull):
                log.roll(b"")
        append(log, 3)
        log.close()
        assert offsets(tmp_path) == list(range(7))

    def test_a_sparse_index_is_synced_before_there_is_a_next_segment(self, tmp_path: Path) -> None:
        class Recording(FailingDisk):
            synced: ClassVar[dict[str, bytes]] = {}

            def sync(self, descriptor: int) -> None:
                path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                self.synced[path.name] = path.read_bytes()
                super().sync(descriptor)

        disk = Recording()
        log = open_log(tmp_path, disk)
        append(log, 600, 8, together=10)
        log.roll(b"")
        path = paths.sparse_index_file(tmp_path, Offset(0))
        assert len(sparse_index.decode(path.read_bytes())) > 2
        assert disk.synced[path.name] == path.read_bytes()

    def test_a_sparse_index_that_can_not_be_synced_is_no_failure(self, tmp_path: Path) -> None:
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        append(log, 3)
        disk.fail = failing("sync", after=1)  # the writer snapshot passes
        log.roll(b"")
        append(log, 3)
        assert disk.calls.count("sync") > 6
        assert offsets(tmp_path, 0, 6) == list(range(6))

    def test_a_sparse_index_that_can_not_be_written_is_no_failure(self, tmp_path: Path) -> None:
        disk = FailingDisk()
        log = open_log(tmp_path, disk)
        disk.fail = failing("write", errno.ENOSPC, after=1)
        append(log, 3)
        assert offsets(tmp_path, 0, 3) == [0, 1, 2]


def test_records_are_counted_from_headers_and_a_damaged_header_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 3, records=4)
    append(log, 1, records=0)
    end = log.end.offset
    log.close()
    damaged = read(tmp_path)[1]
    whole = damaged.path.read_bytes()

    def count(flipped: int) -> int:
        damaged.path.write_bytes(whole[:flipped] + bytes([whole[flipped] ^ 4]) + whole[flipped + 1 :])
        files = LogFiles(tmp_path, IDENTITY)
        with pytest.raises(CorruptBatch):
            list(files.batches(Offset(0), end))
        return sum(found.header.record_count for found in files.batches(Offset(0), end, counts_only=True))

    assert count(damaged.end - 20) == 12, "no record is read"
    for field in (RECORD_COUNT, LAST_OFFSET_DELTA):
        with pytest.raises(CorruptBatch):
            count(damaged.position + field)
