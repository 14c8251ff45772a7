"""The model that all states come from: what it keeps, what it may lose, and that nothing passes it unseen."""

from __future__ import annotations

import errno
import os
import subprocess
from random import Random

import pytest

from tests.crash.explore import Lab, on_disk
from tests.crash.scripts import script
from tests.crash.states import SECTOR, State, states_of
from tests.crash.syscalls import AT_FDCWD, Call
from tests.crash.trace import UNDISTURBED, Plan, TracingRefused, follow
from tests.crash.vfs import Disk, NotModelled

ROOT = "/disk"


def opened(path: str, fd: int, flags: int = os.O_CREAT) -> Call:
    return Call("openat", "open", AT_FDCWD, f"{ROOT}/{path}", flags=flags, result=fd)


def written(fd: int, position: int, data: bytes) -> Call:
    return Call("pwrite64", "write", fd, data=data, number=position, result=len(data))


def synced(fd: int, result: int = 0) -> Call:
    return Call("fsync", "sync", fd, result=result)


def renamed(old: str, new: str) -> Call:
    return Call("rename", "rename", AT_FDCWD, f"{ROOT}/{old}", AT_FDCWD, f"{ROOT}/{new}")


def disk_after(*calls: Call) -> Disk:
    disk = Disk(ROOT)
    for call in calls:
        disk.run(call)
    return disk


NAMED = (opened("a", 3), opened("", 4, 0), synced(4))
"""A new file whose name is durable."""


def states(disk: Disk, mode: str | None, kind: str, draws: int = 200) -> list[State]:
    return [state for state in states_of(disk, Random(1), draws=draws) if (state.mode, state.kind) == (mode, kind)]


def test_a_name_is_durable_with_its_directory_or_on_ext4_with_anything() -> None:
    disk = disk_after(opened("a", 3), written(3, 0, b"1"), synced(3))
    assert states(disk, "ext4", "durable")[0].contents == {"a": b"1"}
    assert states(disk, "strict", "durable")[0].contents == {}
    disk.run(opened("", 4, 0))
    disk.run(synced(4))
    assert states(disk, "strict", "durable")[0].contents == {"a": b"1"}


def test_a_rename_before_the_bytes_are_synced_may_leave_an_empty_file() -> None:
    disk = disk_after(opened("a.tmp", 3), written(3, 0, b"1"), renamed("a.tmp", "a"), opened("", 4, 0), synced(4))
    assert {"a": b""} in [state.contents for state in states(disk, "ext4", "durable")]
    assert disk.seen() == {"a": b"1"}


def test_overwritten_bytes_are_torn_at_sectors_and_keep_what_was_there() -> None:
    old, new = b"o" * 2 * SECTOR, b"n" * 2 * SECTOR
    disk = disk_after(*NAMED, written(3, 0, old), synced(3), written(3, 0, new))
    found = {state.contents.get("a") for state in states(disk, "strict", "random")}
    sectors = {old[:SECTOR], new[:SECTOR]}
    assert found == {first + second for first in sectors for second in sectors}


def test_new_bytes_are_cut_anywhere_or_are_zeros() -> None:
    disk = disk_after(opened("a", 3), synced(3), written(3, 0, b"n" * 700))
    found = {state.contents.get("a", b"") or b"" for state in states(disk, "strict", "random", 600)}
    assert bytes(700) in found
    assert any(0 < len(data) < 700 and set(data) == {ord("n")} for data in found)
    assert any(len(data) == 700 and set(data) == {0, ord("n")} for data in found)


def test_later_writes_may_get_there_before_earlier_ones() -> None:
    disk = disk_after(opened("a", 3), synced(3), written(3, 0, b"1"), written(3, 1, b"2"))
    assert b"\0" + b"2" in {state.contents.get("a") for state in states(disk, "strict", "random")}
    assert b"\0" + b"2" not in {state.contents.get("a") for state in states(disk, "ext4", "prefix")}


def test_what_a_failed_sync_dropped_is_seen_and_never_durable() -> None:
    disk = disk_after(opened("a", 3), synced(3), written(3, 0, b"1"), synced(3, -errno.EIO), synced(3))
    assert disk.seen() == {"a": b"1"}
    assert {state.contents["a"] for state in states(disk, "ext4", "durable")} == {b""}


def test_a_synchronous_write_makes_its_own_bytes_durable_and_no_others() -> None:
    disk = disk_after(
        *(opened("a", 3), synced(3), written(3, 0, b"aaaa"), opened("a", 5, os.O_DSYNC), written(5, 1, b"bb"))
    )
    assert states(disk, "ext4", "durable")[0].contents == {"a": b"\0bb"}
    assert states(disk, "ext4", "bytes")[0].contents == {"a": b"abba"}


def test_a_link_is_a_second_name_of_the_same_bytes() -> None:
    linked = Call("linkat", "link", AT_FDCWD, f"{ROOT}/a", AT_FDCWD, f"{ROOT}/b")
    disk = disk_after(*NAMED, written(3, 0, b"1"), linked)
    assert disk.seen() == {"a": b"1", "b": b"1"}
    assert states(disk, "strict", "durable")[0].contents == {"a": b""}
    disk.run(synced(3))
    disk.run(Call("unlink", "remove", AT_FDCWD, f"{ROOT}/a"))
    disk.run(synced(4))
    assert states(disk, "strict", "durable")[0].contents == {"b": b"1"}


def test_what_is_not_modelled_is_refused() -> None:
    exchanged = Call("renameat2", "rename", AT_FDCWD, f"{ROOT}/a", AT_FDCWD, f"{ROOT}/b", flags=2)
    for call in (Call("sendfile", "other", 3), Call("mmap", "map", 3), exchanged):
        with pytest.raises(NotModelled):
            disk_after(opened("a", 3), call)


def test_the_model_ends_where_the_disk_does(lab: Lab) -> None:
    directory, trace = lab.record(script(41, 10))
    names = {call.name for call in trace.calls}
    assert {"openat", "fsync", "fdatasync", "pwrite64"} <= names
    assert names & {"rename", "renameat", "renameat2"}
    assert len(on_disk(directory)) > 10


def test_a_sync_that_is_made_to_fail_fails_for_the_process(lab: Lab) -> None:
    _, trace = lab.record(script(41, 3, numbered=True, retries=3), plan=Plan(fail_sync=frozenset({9})))
    assert [call.result for call in trace.calls if call.kind == "sync"][9] == -errno.EIO


def test_a_process_that_is_not_traced_is_an_error() -> None:
    with subprocess.Popen(["true"]) as process, pytest.raises(TracingRefused, match="ptrace"):
        follow(process.pid, ROOT, UNDISTURBED)
