"""Objects that a copy has fetched from its replica and not yet taken, in files that outlive the process.

* An object is fetched once, however often a follower is killed before the copy has taken it.
* A missing or damaged object of a round is found before the copy takes any of the round.
* A kept file is verified whenever it is read: one that a power cut has damaged is fetched again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from kvstore.disk.files import Files, read_file, refusals
from kvstore.errors import CorruptData
from kvstore.replica.client import Client
from logformat import paths
from logformat.ids import Epoch
from logformat.replica.object_file import ObjectName, decode_object, parse_name


class Spool:
    """A client that keeps the ranges and snapshots it fetches; see :class:`kvstore.replica.client.Client`.

    Args:
        copy: Directory of the copy. Nothing is kept before :meth:`begin`.
        store_id: Store of the replica.
    """

    def __init__(self, client: Client, copy: Path, store_id: UUID, files: Files) -> None:
        self._client = client
        self._root = copy / paths.DOWNLOADS
        self._store_id = store_id
        self._files = files
        self._directory: Path | None = None

    def has_begun(self, epoch: Epoch) -> bool:
        """Whether this or an earlier process has begun to keep objects of a leader's time."""
        return self._directory_of(epoch).is_dir()

    def begin(self, epoch: Epoch) -> None:
        """Keep objects from now on; removes what was kept in the time of other leaders.

        Raises:
            StoreFull, LogFailed: The disk is full or failed.
        """
        directory = self._directory_of(epoch)
        with refusals(self._root):
            for other in self._root.glob("*"):
                if other != directory:
                    self._files.remove_tree(other)
            self._files.make_directory(self._root)
            self._files.make_directory(directory)
        self._directory = directory

    def discard(self, name: ObjectName) -> None:
        """Remove an object that the copy has taken."""
        with refusals(self._root), suppress(FileNotFoundError):
            if self._directory is not None:
                self._files.remove(self._directory / _file_name(name))

    def end(self) -> None:
        """Remove everything: the copy has taken it."""
        with refusals(self._root):
            self._files.remove_tree(self._root)
        self._directory = None

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
        """See :class:`kvstore.replica.client.Client`."""
        return self._client.list(prefix, after)

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        """All of an object; a range or snapshot as it was when it was fetched.

        Raises:
            FileNotFoundError: There is no object of this name.
            CorruptData: The object is larger than ``bytes_max``.
            StoreFull, LogFailed: The disk is full or failed.
        """
        parsed = parse_name(name)
        if parsed is None or self._directory is None:
            return self._client.get(name, bytes_max=bytes_max)
        file = self._directory / _file_name(parsed)
        with suppress(FileNotFoundError, CorruptData):
            data = memoryview(read_file(file, bytes_max=bytes_max))
            decode_object(data, parsed, self._store_id)
            return data
        data = self._client.get(name, bytes_max=bytes_max)
        with refusals(file):
            unfinished = file.with_name(file.name + paths.TEMPORARY)
            unfinished.write_bytes(data)
            self._files.rename(unfinished, file)
        return data

    def get_first(self, name: str, count: int) -> memoryview:
        """See :class:`kvstore.replica.client.Client`."""
        return self._client.get_first(name, count)

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        """See :class:`kvstore.replica.client.Client`."""
        return self._client.create(name, pieces)

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        """See :class:`kvstore.replica.client.Client`."""
        self._client.replace(name, pieces)

    def delete(self, name: str) -> None:
        """See :class:`kvstore.replica.client.Client`."""
        self._client.delete(name)

    def modified_ms(self, name: str) -> int:
        """See :class:`kvstore.replica.client.Client`."""
        return self._client.modified_ms(name)

    def _directory_of(self, epoch: Epoch) -> Path:
        return self._root / str(epoch)


def _file_name(name: ObjectName) -> str:
    stream = name.stream
    return f"{stream.table_id}.{stream.bucket}.{name.start}.{name.end}.{name.epoch}.{name.kind}"
