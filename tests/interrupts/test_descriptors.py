"""Ctrl-C at each moment in which a file is opened or closed: none stays open, and none is closed twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.disk.held_directory import HeldDirectory
from kvstore.disk.lock import ProcessLock
from kvstore.log.published import EndPublisher, EndReader
from kvstore.log.segments import LogIdentity
from kvstore.replica import directory as objects
from logformat.ids import BucketId, Offset, TableId
from tests.interrupts.moments import Moments

IDENTITY = LogIdentity(UUID(int=1), TableId(1), BucketId(0))
Scene = Callable[[Path, Files], tuple[Callable[[], object], Callable[[], object]]]
"""A call, and what ends it."""


def end_read(directory: Path, files: Files) -> tuple[Callable[[], object], Callable[[], object]]:
    reader = EndReader(directory, IDENTITY, files)
    return reader.read, reader.close


def end_closed(directory: Path, files: Files) -> tuple[Callable[[], object], Callable[[], object]]:
    reader = EndReader(directory, IDENTITY, files)
    reader.read()
    return reader.close, reader.close


def end_of_publishing(directory: Path, files: Files) -> tuple[Callable[[], object], Callable[[], object]]:
    publisher = EndPublisher(directory / "below", IDENTITY, files)
    return lambda: publisher.close(voids=True), lambda: publisher.close(voids=True)


def directory_opened(directory: Path, files: Files) -> tuple[Callable[[], object], Callable[[], object]]:
    held: list[int] = []
    opened = map(files.open_directory, [directory / "below"])
    return lambda: held.extend(opened), lambda: [os.close(descriptor) for descriptor in held]


def lock_released(directory: Path, files: Files) -> tuple[Callable[[], object], Callable[[], object]]:
    lock = ProcessLock(directory / "below" / "LOCK", files)
    lock.acquire()
    return lock.release, lock.release


def file_published(directory: Path, files: Files) -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: files.publish(directory / "below" / "file", b"data"), lambda: None


def object_replaced(directory: Path, _files: Files) -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: objects.replace(directory, "below/object", [b"data"]), lambda: None


@pytest.mark.parametrize(
    "scene",
    [end_read, end_closed, end_of_publishing, directory_opened, lock_released, file_published, object_replaced],
)
def test_each_moment(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    files = Files()
    files.held = HeldDirectory(tmp_path, SystemClock())  # as of an open store
    publisher = EndPublisher(tmp_path, IDENTITY, files)
    publisher.publish(Offset(7))
    moments, before, errors = Moments(), open_in(tmp_path), []
    found = 0
    while not found:  # Python 3.12 traces nothing of the first call in a process
        call, ended = scene(tmp_path, files)
        found = moments.of(call)
        ended()
    for moment in range(found):
        call, ended = scene(tmp_path, files)
        errors.append(moments.interrupt(call, moment))
        ended()  # closes no descriptor a second time: that raises
        assert open_in(tmp_path) == before, moment
    publisher.close(voids=True)
    files.held.close()
    assert {type(error) for error in errors if error is not None} == {KeyboardInterrupt}


def open_in(directory: Path) -> list[str]:
    """Where the descriptors of this process lead, as far as that is in a directory."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself, and what other threads close
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(link for link in links if link.startswith(str(directory)))
