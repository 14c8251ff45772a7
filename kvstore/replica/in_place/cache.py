"""Objects of a replica in files of this machine, so that they are fetched once.

* A file is verified whenever it is read; one that is damaged is fetched again. Losing the files costs time only.
* The files of all replicas together take at most a number of bytes, which the process that adds a file sees to: it
  removes those that were used least recently.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

from kvstore.disk.files import Files, read_file, refusals
from kvstore.errors import CorruptData, LogFailed, StoreFull, UnsupportedOperation
from kvstore.replica.client import Client
from logformat import paths
from logformat.replica.object_file import CATALOG_PREFIX, decode_object, parse_name

DIRECTORY = "KVSTORE_CACHE_DIR"
"""Environment variable with the directory of the files."""
DIRECTORY_NAME = "kvstore-replicas"
"""Directory of the files in the one above, which may have files of others."""
_LARGEST = 4
"""An object of more than this fraction of the limit is not kept."""
_COUNTED = 16
"""The files are counted again after this fraction of the limit was added."""

_UNFINISHED = re.compile(rf"\.[0-9a-f]{{32}}{re.escape(paths.TEMPORARY)}")


def directory_of_cache() -> Path:
    """The directory that the environment names; else one in the user's directory for caches."""
    if given := os.environ.get(DIRECTORY):
        return Path(given)
    home = os.path.expanduser("~")
    if home == "~":  # the user has none
        home = tempfile.gettempdir()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "kvstore"


class ObjectCache:
    """A client that keeps the ranges and snapshots it fetches; see :class:`kvstore.replica.client.Client`.

    Args:
        directory: Its directory :data:`DIRECTORY_NAME` has the files, for all replicas; both are created if they do
            not exist. If they can't be, no object is kept.
        bytes_max: Largest size of all files; 0 keeps none.
    """

    def __init__(self, client: Client, directory: Path, store_id: UUID, bytes_max: int) -> None:
        self._client = client
        self._root = directory / DIRECTORY_NAME
        self._directory = self._root / str(store_id)
        self._store_id = store_id
        self._bytes_max = bytes_max
        self._files = Files()
        if bytes_max:
            try:
                self._directory.mkdir(0o700, parents=True, exist_ok=True)
            except OSError:
                self._bytes_max = 0  # nothing can be kept there
        self._bytes, self._added = sum(size for _, _, size in self._kept()), 0

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        """See :class:`kvstore.replica.client.Client`."""
        return self._client.list(prefix, after)

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        """All of an object; a range or snapshot from its file, if there is a right one.

        Raises:
            FileNotFoundError: There is no object of this name.
            CorruptData: The object is larger than ``bytes_max``.
        """
        parsed = parse_name(name)
        if parsed is None or not self._bytes_max:
            return self._client.get(name, bytes_max=bytes_max)
        file = self._directory / name.replace("/", "-")
        with suppress(OSError, CorruptData):
            data = memoryview(read_file(file, bytes_max=bytes_max))
            decode_object(data, parsed, self._store_id)
            os.utime(file)  # it was used
            return data
        data = self._client.get(name, bytes_max=bytes_max)
        if len(data) * _LARGEST <= self._bytes_max:
            # A full or failed disk costs only that the object is fetched again.
            with suppress(StoreFull, LogFailed):
                self._keep(file, data)
        return data

    def get_first(self, name: str, count: int) -> memoryview:
        """See :class:`kvstore.replica.client.Client`."""
        return self._client.get_first(name, count)

    def modified_ms(self, name: str) -> int:
        """See :class:`kvstore.replica.client.Client`."""
        return self._client.modified_ms(name)

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        """Refused: what is opened in place is not written."""
        raise _refused(name, len(pieces))

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Refused: what is opened in place is not written."""
        raise _refused(name, len(pieces))

    def delete(self, name: str) -> None:
        """Refused: what is opened in place is not written."""
        raise _refused(name, 0)

    def _keep(self, file: Path, data: memoryview) -> None:
        unfinished = file.with_name(f"{file.name}.{uuid4().hex}{paths.TEMPORARY}")
        with refusals(file):
            try:
                unfinished.write_bytes(data)
                self._files.rename(unfinished, file)
            except OSError:
                unfinished.unlink(missing_ok=True)
                raise
            self._bytes += len(data)
            self._added += len(data)
            if self._added * _COUNTED >= self._bytes_max:  # other processes add files, too
                self._bytes, self._added = sum(size for _, _, size in self._kept()), 0
            if self._bytes > self._bytes_max:
                self._shrink()

    def _shrink(self) -> None:
        """Remove the files that were used least recently, and some more than is needed, so that this is rare."""
        kept = sorted(self._kept(), reverse=True)
        self._bytes = 0
        for _, path, size in kept:
            if self._bytes + size <= self._bytes_max * 3 // 4:
                self._bytes += size
            else:
                path.unlink(missing_ok=True)

    def _kept(self) -> Iterator[tuple[int, Path, int]]:
        """Time of the last use (ns), path and size of each file, of other processes, too."""
        for path in self._root.glob("*/*"):
            if _is_ours(path):
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode):
                        yield status.st_mtime_ns, path, status.st_size


def _is_ours(path: Path) -> bool:
    """Whether a file has an object or a beginning of one: any other may be of another program, and is not removed."""
    try:
        UUID(path.parent.name)
    except ValueError:
        return False
    name = _UNFINISHED.sub("", path.name)
    return parse_name(name.replace("-", "/", 1 if name.startswith(f"{CATALOG_PREFIX}-") else 3)) is not None


def _refused(name: str, pieces: int) -> UnsupportedOperation:
    return UnsupportedOperation("A replica that is opened in place is not written.", object=name, pieces=pieces)
