"""Keeps what a repair replaces: in ``lost/`` of the store, under the name it had there.

If a file that replaced another must be replaced, too, it gets the same name with a number at the end.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from kvstore.disk.files import Files, data_ranges, open_regular
from logformat import paths

_PIECE_BYTES = 1 << 24


class Quarantine:
    """The directory in ``lost/`` of one repair; it is created when the first file comes.

    Args:
        store: Directory of the store.

    Attributes:
        directory: Its path, even if it does not exist yet.
        names: Paths of its files, relative to the store's directory.
    """

    def __init__(self, store: Path, files: Files) -> None:
        self._store = store
        self._files = files
        self.directory = paths.repair_directory(store, _next_number(store / paths.LOST))
        self.names: list[Path] = []

    def move(self, path: Path) -> None:
        """Move a file or directory to the quarantine.

        Raises:
            OSError: The disk refuses; the file is in one of the two places.
        """
        target = self._target_of(path)
        self._files.rename(path, target)
        self._files.sync_directory(target.parent)
        self._files.sync_directory(path.parent)

    def copy(self, path: Path) -> None:
        """Copy a file that is to be replaced to the quarantine; a sparse file stays sparse.

        Raises:
            OSError: The disk refuses, or the file can't be read.
        """
        target = self._target_of(path)
        unfinished = target.with_name(target.name + paths.TEMPORARY)
        if os.path.lexists(unfinished):
            self._files.remove(unfinished)
        descriptor = self._files.open(unfinished, create=True)
        try:
            source = open_regular(path)
            try:
                size = os.fstat(source).st_size
                for begin, end in data_ranges(source, 0, size):
                    for at in range(begin, end, _PIECE_BYTES):
                        piece = os.pread(source, min(_PIECE_BYTES, end - at), at)
                        self._files.write(descriptor, [memoryview(piece)], at)
                self._files.truncate(descriptor, size)
            finally:
                os.close(source)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
        self._files.rename(unfinished, target)
        self._files.sync_directory(target.parent)

    def _target_of(self, path: Path) -> Path:
        name = path.relative_to(self._store)
        self.names.append(name)
        self._files.make_directory(self._store / paths.LOST)
        self._files.make_directory(self.directory)
        for directory in reversed(name.parents[:-1]):
            self._files.make_directory(self.directory / directory)
        target = self.directory / name
        for number in count(2):
            if not os.path.lexists(target):
                break
            target = self.directory / f"{name}.{number}"  # replaced for the second time
        return target


def _next_number(lost: Path) -> int:
    names = os.listdir(lost) if lost.is_dir() else []
    return 1 + max((number for name in names if (number := paths.repair_number(name)) is not None), default=0)
