"""The stored edits of the journal, one by one, whether or not they make a valid catalog."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kvstore.disk.environment import Environment, open_environment
from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest, NotAStore
from kvstore.meta.journal import MAP_BYTES
from logformat import paths
from logformat.ids import Txid

_KEY = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment of the journal.

    Attributes:
        name: Name of its database: its first txid in 20 digits, unless it is damaged.
        first, last: Txids of its first and last edit; None if it is empty.
        edits: Number of its edits.
    """

    name: str
    first: Txid | None
    last: Txid | None
    edits: int


class Browser:
    """Reads the journal's segments and edits; made by :func:`browse`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def segments(self) -> list[SegmentFacts]:
        """All segments, in order."""
        found = []
        with self._environment.read_databases() as transaction:
            with transaction.cursor() as cursor:
                names = [bytes(name).decode("ascii", "backslashreplace") for name in cursor.iternext(values=False)]
            for name in names:
                database = self._environment.database_within(transaction, name)
                with transaction.cursor(db=database) as cursor:
                    first = _txid(cursor.key()) if cursor.first() else None
                    last = _txid(cursor.key()) if cursor.last() else None
                    found.append(SegmentFacts(name, first, last, int(transaction.stat(database)["entries"])))
        return found

    def edits(self, first: int) -> Iterator[tuple[Txid, bytes]]:
        """Edits of the segment that begins with this txid, in their stored bytes.

        Raises:
            InvalidRequest: No segment begins with it.
        """
        facts = next((each for each in self.segments() if each.first == first), None)
        if facts is None:
            raise InvalidRequest("The journal has no segment with this first edit; see `kvstore meta ls`.", first=first)
        yield from self._from(facts.name, 0)

    def edit(self, txid: int) -> bytes:
        """Stored bytes of an edit.

        Raises:
            InvalidRequest: The journal does not have this edit.
        """
        for facts in self.segments():
            if facts.first is not None and facts.last is not None and facts.first <= txid <= facts.last:
                for found, data in self._from(facts.name, txid, most=1):
                    if found == txid:
                        return data
        raise InvalidRequest("The journal does not have this edit; see `kvstore meta ls` for those it has.", txid=txid)

    def _from(self, name: str, txid: int, most: int | None = None) -> list[tuple[Txid, bytes]]:
        with self._environment.read_databases() as transaction:
            database = self._environment.database_within(transaction, name)
            with transaction.cursor(db=database) as cursor:
                if not cursor.set_range(_KEY.pack(txid)):
                    return []
                return [(_txid(key), value) for key, value in islice(cursor.iternext(), most)]


@contextmanager
def browse(store: Path, files: Files) -> Iterator[Browser]:
    """Open the journal of a store, without the store.

    Raises:
        NotAStore: There is no journal.
        CorruptData: The file is too damaged for LMDB to open.
    """
    try:
        environment = open_environment(store / paths.JOURNAL, files, map_bytes=MAP_BYTES, read_only=True)
    except FileNotFoundError as error:
        raise NotAStore("There is no journal of a catalog here; check the path.", path=store) from error
    try:
        yield Browser(environment)
    finally:
        environment.close()


def _txid(key: bytes) -> Txid:
    return Txid(int.from_bytes(key, "big", signed=True))
