"""Objects of a round, fetched before the copy takes any: a missing or damaged object is found in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from kvstore.files import read_file, refusals
from kvstore.replica.client import Client
from logformat import paths
from logformat.replica.object_file import ObjectName, parse_name


class Spool:
    """A client that fetches each range once, and keeps it in files; see :class:`kvstore.replica.client.Client`.

    Args:
        directory: Directory for the ranges. A range never changes under its name.
    """

    def __init__(self, client: Client, directory: Path) -> None:
        self._client = client
        self._directory = directory

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See :class:`kvstore.replica.client.Client`."""
        return self._client.list(prefix)

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        """All of an object; a range as it was when it was fetched first.

        Raises:
            FileNotFoundError: There is no object of this name.
            CorruptData: The object is larger than ``bytes_max``.
            StoreFull, LogFailed: The disk is full or failed.
        """
        parsed = parse_name(name)
        if parsed is None or parsed.kind != "range":
            return self._client.get(name, bytes_max=bytes_max)
        file = self._file(parsed)
        with suppress(FileNotFoundError):
            return memoryview(read_file(file, bytes_max=bytes_max))
        data = self._client.get(name, bytes_max=bytes_max)
        with refusals(file):
            file.write_bytes(data)
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

    def _file(self, name: ObjectName) -> Path:
        stream = name.stream
        return self._directory / f"{stream.table_id}.{stream.bucket}.{name.start}.{name.end}.{name.epoch}"


@contextmanager
def spooled(client: Client, copy: Path) -> Iterator[Spool]:
    """A spool in the directory of a copy, removed at the end.

    Raises:
        StoreFull, LogFailed: The disk is full or failed.
    """
    with refusals(copy):
        directory = TemporaryDirectory(prefix="spool-", suffix=paths.TEMPORARY, dir=copy, ignore_cleanup_errors=True)
    with directory:
        yield Spool(client, Path(directory.name))
