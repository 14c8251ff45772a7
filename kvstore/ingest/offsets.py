"""Choice of the files of a task, and detection of files that came late or changed.

* A task takes files after the job's offset, in order, up to a number and a size, and at least one.
* A file beside the catalog, which is only appended to, lists the taken files. It serves to report files that came late,
  and decides nothing: without it, all files before the offset count as taken.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvstore.disk.files import Files, open_file, refusals, size_of
from kvstore.errors import CorruptData
from kvstore.ingest.sources import is_same, order_of
from kvstore.process.calls import uninterrupted
from logformat import paths
from logformat.catalog.edits import EDIT_BYTES_MAX
from logformat.catalog.jobs import JobStatus, SourceFile

_log = logging.getLogger(__name__)

TAKEN_BYTES_MAX = 1 << 32
TAKEN_LINE_BYTES_MAX = EDIT_BYTES_MAX
"""A line lists the files of one BeginTask edit."""


def files_of_task(listed: Sequence[SourceFile], job: JobStatus) -> list[SourceFile]:
    """The files of the next task.

    Args:
        listed: All files of the source, in order.
    """
    taken: list[SourceFile] = []
    size = 0
    for number in range(_first_after(listed, job.offset), len(listed)):
        file = listed[number]
        size += file.size
        if len(taken) == job.options.max_files or (taken and size > job.options.max_bytes):
            break
        taken.append(file)
    return taken


def files_after(listed: Sequence[SourceFile], offset: str | None) -> Sequence[SourceFile]:
    """Files after an offset."""
    return listed[_first_after(listed, offset) :]


def _first_after(listed: Sequence[SourceFile], offset: str | None) -> int:
    if offset is None:
        return 0
    return bisect_right(listed, order_of(offset), key=lambda file: order_of(file.path))


@dataclass(frozen=True)
class Overlooked:
    """Files before the offset that are new or changed.

    Attributes:
        late: Paths of files that came after the offset had passed them; they are not loaded.
        changed: Paths of files that changed after they were loaded; they are not loaded again.
    """

    late: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.late or self.changed)


class _Line(msgspec.Struct):
    version: int
    files: list[SourceFile]


_decode = msgspec.json.Decoder(_Line).decode


def _line(data: bytes) -> _Line | None:
    """Decode a line; None if it is incomplete or damaged."""
    try:
        return _decode(data) if data.endswith(b"\n") else None
    except msgspec.DecodeError:
        return None


class Taken:
    """The files that a job has taken so far, stored in a file.

    Args:
        directory: Directory of the job.

    Raises:
        CorruptData: The file is damaged.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory / paths.TAKEN_FILE
        self._files = files
        self._known: dict[str, SourceFile] = {}
        self._version = -1
        self._end = 0
        self._is_cut = False
        try:
            with open_file(self._path) as file:
                size = size_of(file.fileno(), self._path, bytes_max=TAKEN_BYTES_MAX)
                self._read(file, size)
        except FileNotFoundError:
            return

    def _read(self, file: BinaryIO, size: int) -> None:
        while data := file.readline(TAKEN_LINE_BYTES_MAX):
            line = _line(data)
            if line is None and self._end + len(data) < size:
                raise CorruptData(
                    "The list of files that a job has taken is damaged; remove it: all files before the offset then"
                    " count as taken.",
                    path=self._path,
                    position=self._end,
                )
            if line is None:
                self._is_cut = True  # probably by a crash; the next line overwrites it
            else:
                self._end += len(data)
                self._know(line)

    def overlooked(self, listed: Sequence[SourceFile], job: JobStatus) -> Overlooked:
        """Files before the offset that came late or have changed.

        After the offset was set by hand, or without a list, all files before it count as taken.
        """
        if job.offset is None:
            return Overlooked()
        before = listed[: _first_after(listed, job.offset)]
        is_lost = self._is_cut and job.offset not in self._known
        if is_lost:
            _log.warning("the last files that a job took can't be read; all files before its offset count as taken")
        if is_lost or self._version < job.version:
            self.add([file for file in before if file.path not in self._known], job.version)
            return Overlooked()
        return Overlooked(
            tuple(file.path for file in before if file.path not in self._known),
            tuple(file.path for file in before if not is_same(self._known.get(file.path, file), file)),
        )

    @uninterrupted
    def add(self, taken: list[SourceFile], version: int) -> None:
        """Add files to the list, durably.

        Args:
            version: Version of the offset after which they were taken.

        Raises:
            StoreFull, LogFailed: The disk is full or failed.
        """
        line = _Line(version, taken)
        data = msgspec.json.encode(line) + b"\n"
        with refusals(self._path):
            is_new = not self._path.exists()
            descriptor = self._files.open(self._path, create=is_new)
            try:
                self._files.write(descriptor, [memoryview(data)], self._end)
                self._files.truncate(descriptor, self._end + len(data))
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
            if is_new:
                self._files.sync_directory(self._path.parent)
        self._end += len(data)
        self._is_cut = False
        self._know(line)

    def _know(self, line: _Line) -> None:
        self._known.update((file.path, file) for file in line.files)
        self._version = max(self._version, line.version)
