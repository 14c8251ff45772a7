"""Zeros ahead of small batches: they are no part of the log, and are gone when it is closed or rolled."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.disk.files import Files
from kvstore.errors import CorruptBatch, StoreFull
from kvstore.log import segments
from kvstore.log.log import Log
from kvstore.log.segment_writer import SMALL_BYTES_MAX
from kvstore.log.segments import AHEAD_BYTES, KnownEnd, LogFiles, ends_at
from logformat.ids import OFFSET_MAX, Offset, Position
from logformat.log.batch import ALIGNMENT
from tests.cli.commands import fine, run
from tests.support.calls_made import calls_made
from tests.support.disks import FailingDisk, failing
from tests.support.logs import IDENTITY, append, batch, offsets, open_log, stretch
from tests.support.processes import Child, Pipe


def append_durably(log: Log, count: int = 1, records: int = 1) -> None:
    """Batches that are synced at once, each of at least one offset."""
    for _ in range(count):
        log.append([batch(log.end.offset, records, durable_end=log.durable.offset)], durable=True)


def last_file(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def after_the_end(log: Log, directory: Path) -> bytes:
    return last_file(directory).read_bytes()[log.end.position :]


def test_a_file_grows_by_zeros_and_batches_take_their_place(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_durably(log)
    size = last_file(tmp_path).stat().st_size
    assert after_the_end(log, tmp_path).strip(b"\0") == b""
    append_durably(log, 50)
    assert last_file(tmp_path).stat().st_size == size > log.end.position
    sizes = {size}
    for _ in range(500):
        append_durably(log)
        sizes.add(last_file(tmp_path).stat().st_size)
    assert len(sizes) == 1 + log.end.position // AHEAD_BYTES
    assert offsets(tmp_path) == list(range(551))
    log.close()
    assert last_file(tmp_path).stat().st_size == log.end.position


def test_large_batches_and_those_that_wait_for_a_sync_have_no_zeros_ahead(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 3)
    assert after_the_end(log, tmp_path) == b""
    count = SMALL_BYTES_MAX // batch(0).size + 1
    log.append([batch(3 + number) for number in range(count)], durable=True)
    assert after_the_end(log, tmp_path) == b""


def test_a_full_segment_ends_where_its_batches_do(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes_max=1500)
    for _ in range(20):
        append_durably(log)
        if log.is_full:
            log.roll(b"")
    files = LogFiles(tmp_path, IDENTITY)
    bases = files.bases()
    assert len(bases) > 3
    for base, following in pairwise(bases):
        assert files.segment(base).size == files.segment(following).head.previous_end
    assert offsets(tmp_path) == list(range(20))


@pytest.mark.parametrize("short", [0, 77, 5000])
def test_a_disk_with_room_for_a_batch_only_takes_it(tmp_path: Path, short: int) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    disk.fail, disk.short = failing("fill", errno.ENOSPC), short
    append_durably(log)
    assert last_file(tmp_path).stat().st_size == log.end.position
    append_durably(log)
    assert last_file(tmp_path).stat().st_size > log.end.position, "there is space again"
    assert offsets(tmp_path) == [0, 1]


def test_a_refused_batch_leaves_nothing_where_the_next_one_goes(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    append_durably(log)
    disk.fail, disk.short = failing("write", errno.ENOSPC), 200
    with pytest.raises(StoreFull):
        append_durably(log, 1, 8)
    assert after_the_end(log, tmp_path) == b""
    append_durably(log)
    assert set(after_the_end(log, tmp_path)) == {0}
    assert offsets(tmp_path) == [0, 1]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_sync_the_log_goes_on_in_another_segment(tmp_path: Path, code: int) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    append_durably(log, 2)
    disk.fail = failing("sync", code)
    append_durably(log, 2)
    log.close()
    assert len(LogFiles(tmp_path, IDENTITY).bases()) == 2
    log = open_log(tmp_path)
    append_durably(log)
    assert offsets(tmp_path) == list(range(5))


def test_another_process_sees_each_batch_and_asks_again_at_little_cost(tmp_path: Path) -> None:
    log, known = open_log(tmp_path), KnownEnd(tmp_path, Files())
    append_durably(log)
    for end in range(1, 5):
        os.utime(last_file(tmp_path), (1, 1))  # as if all were written within one tick of the file system's clock
        ask = partial(known.after, Offset(end), LogFiles(tmp_path, IDENTITY))
        first, again = calls_made(ask), calls_made(ask)
        assert again < first / 2
        append_durably(log)
        os.utime(last_file(tmp_path), (1, 1))
        assert known.after(Offset(end), LogFiles(tmp_path, IDENTITY)) == end + 1


def test_a_read_of_all_there_is_goes_on_in_the_next_segment_and_ends_at_zeros(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_durably(log, 2)
    batches = LogFiles(tmp_path, IDENTITY).batches(Offset(0), OFFSET_MAX)
    assert [next(batches).header.base_offset for _ in range(2)] == [0, 1]
    log.roll(b"")
    append_durably(log, 2)
    assert [next(batches).header.base_offset for _ in range(2)] == [2, 3]
    with pytest.raises(CorruptBatch, match="yet"):
        next(batches)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_of_a_shorter_file_does_not_end_the_log(tmp_path: Path, code: int) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path, disk)
    append_durably(log, 2)
    disk.calls.clear()
    disk.fail = failing("sync", code)
    log.roll(b"")
    assert disk.calls[:2] == ["truncate", "sync"]
    append_durably(log, 2)
    log.roll(b"")
    append_durably(log)
    assert len(LogFiles(tmp_path, IDENTITY).bases()) == 3
    assert offsets(tmp_path) == list(range(5))


def test_a_file_that_is_too_short_does_not_end_where_the_log_did(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    ends = [ends_at(path, 100, Position(position), Files()) for position in (50, 100, 150)]
    assert ends == [True, True, False]
    path.write_bytes(bytes(99) + b"x")
    assert not ends_at(path, 100, Position(0), Files()), "there is more than zeros"
    path.write_bytes(bytes(AHEAD_BYTES + 1))
    assert not ends_at(path, AHEAD_BYTES + 1, Position(0), Files()), "no writer puts so many"


def test_sizes_do_not_count_zeros(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_durably(log, 3, 8)
    files = LogFiles(tmp_path, IDENTITY)
    assert last_file(tmp_path).stat().st_size > AHEAD_BYTES
    assert 0 <= log.end.position - files.segment(Offset(0)).bytes_with_batches() < 2 * ALIGNMENT
    assert files.bytes_between(Offset(0), log.end.offset) <= log.end.position


def _read_on(pipe: Pipe, directory: Path, count: int) -> None:
    batches = LogFiles(directory, IDENTITY).batches(Offset(0), OFFSET_MAX)
    pipe.send([next(batches).header.base_offset for _ in range(count)])
    pipe.recv()
    with suppress(CorruptBatch):
        next(batches)
    pipe.send("still there")


def test_a_reader_survives_that_zeros_which_it_has_mapped_are_cut_off(tmp_path: Path) -> None:
    """Pages of a map that lie after the end of the file end a process that looks at them."""
    log = open_log(tmp_path)
    log.append([batch(0, rows=pa.record_batch({"s": ["five times 64 bytes"]}))], durable=True)
    while log.end.position % mmap.PAGESIZE:
        log.append([stretch(log.end.offset, log.end.offset + 1)], durable=True)
        assert log.end.position < AHEAD_BYTES
    with Child(_read_on, tmp_path, log.end.offset) as reader:
        assert reader.hear() == list(range(log.end.offset))
        log.close()
        reader.say("go on")
        assert reader.hear() == "still there"


def test_zeros_may_be_cut_off_between_a_look_at_the_size_and_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, mapped = open_log(tmp_path), segments.mapped
    append_durably(log, 3)
    assert last_file(tmp_path).stat().st_size > log.end.position

    def after_a_cut(*given: Any) -> memoryview:
        monkeypatch.undo()
        log.close()
        return mapped(*given)

    monkeypatch.setattr(segments, "mapped", after_a_cut)
    assert offsets(tmp_path) == [0, 1, 2]


def _write_and_wait(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        table = store.create_table("t", {"k": "int64"}, "k")
        table.upsert({"k": 1})
        table.flush()
        pipe.send("flushed")
        pipe.recv()
        table.upsert({"k": 2})
        pipe.send("written")
        pipe.recv()


def test_a_killed_writer_leaves_zeros_which_only_a_writer_removes(store_path: Path) -> None:
    with Child(_write_and_wait, store_path) as writer:
        writer.hear()
    file = last_file(store_path / "tables/1/0/log")
    size = file.stat().st_size
    assert size > AHEAD_BYTES
    with kvstore.open(store_path) as store:
        assert store["t"].get(1) == {"k": 1}
        assert store.check().ok
        assert file.stat().st_size == size, "there was nothing to recover"
        store["t"].upsert({"k": 2})
        assert store["t"].count() == 2
    assert file.stat().st_size < AHEAD_BYTES


def test_zeros_that_a_killed_writer_left_need_no_repair_while_there_is_an_index(store_path: Path) -> None:
    with Child(_write_and_wait, store_path) as writer:
        writer.hear()
    lost = store_path.with_name("lost")
    shutil.copytree(store_path, lost)
    shutil.rmtree(lost / "tables/1/0/index")
    assert "--accept-loss" in run("check", lost, "--repair").out, "they could be batches that were lost"
    fine("check", lost, "--repair", "--accept-loss")
    fine("check", store_path, "--repair")
    with kvstore.open(store_path) as store:
        assert list(store["t"]) == [{"k": 1}]
        assert store.check().ok


def test_a_row_in_place_of_zeros_is_recovered(store_path: Path) -> None:
    with Child(_write_and_wait, store_path) as writer:
        writer.hear()
        writer.say("write")
        writer.hear()
    with kvstore.open(store_path) as store:
        assert store["t"].get(2) == {"k": 2}
        assert store.check().ok


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["small", "large", "later", "refused", "roll", "close", "kill"]),
                          st.integers(0, 8)), max_size=30))  # fmt: skip
def test_whatever_happens_the_log_has_what_was_appended_and_zeros_after_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    directory, disk = tmp_path_factory.mktemp("log"), FailingDisk()
    log, sizes, killed = open_log(directory, disk), list[int](), list[Log]()
    for step, records in steps:
        taken = [max(records, 1)]
        match step:
            case "small":
                append_durably(log, 1, records)
            case "large":
                taken = [8] * (SMALL_BYTES_MAX // batch(0, 8).size + 1)
                firsts = accumulate(taken[:-1], initial=log.end.offset)
                log.append([batch(first, 8) for first in firsts], durable=True)
            case "later":
                append(log, 1, records)
            case "refused":
                disk.fail, disk.short, taken = failing("write", errno.ENOSPC), 100 * records, []
                with pytest.raises(StoreFull):
                    append_durably(log, 1, records)
            case "roll":
                log.roll(b"")
                taken = []
            case _:
                if step == "close":
                    log.close()
                else:
                    killed.append(log)
                log, taken = open_log(directory, disk), []
                assert after_the_end(log, directory) == b""
        sizes += taken
        assert offsets(directory) == list(accumulate(sizes, initial=0))[:-1]
        rest = after_the_end(log, directory)
        assert len(rest) <= AHEAD_BYTES
        assert not rest.strip(b"\0")
    for each in (log, *killed):
        each.close()
