"""What the files of a catalog hold, image by image and edit by edit, whether or not they make a valid catalog.

* The store need not open, and another process may write it: what it removes meanwhile is left out.
* Edits are bytes as they are stored; decoding, which may fail for one of them, is left to the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kvstore.arguments import integer_within, path_of
from kvstore.disk.environment import Environment, open_environment
from kvstore.disk.files import Files, refusals
from kvstore.errors import CorruptImage, InvalidRequest, NotAStore, UnsupportedVersion
from kvstore.meta import image
from kvstore.meta.journal import MAP_BYTES
from logformat import paths
from logformat.catalog.image import Head
from logformat.ids import OFFSET_MAX, Txid

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


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image of the catalog.

    Attributes:
        txid: The last edit in it, by the name of its file.
        bytes: Size of the file.
        head: Who made it, and when; None if it is damaged, or a newer version wrote it.
        damage: Why it can't be read; None if all of it is valid.
    """

    txid: Txid
    bytes: int
    head: Head | None
    damage: CorruptImage | UnsupportedVersion | None


class CatalogBrowser:
    """Reads the images of a catalog, and the segments and edits of its journal; made by :func:`browse_catalog`."""

    def __init__(self, store: Path, environment: Environment) -> None:
        self._images = store / paths.IMAGES
        self._environment = environment

    def images(self) -> list[StoredImage]:
        """All images, the newest first, each read and verified.

        Raises:
            StoreError: The directory can't be read.
        """
        images = []
        with refusals(self._images):
            for txid in image.txids(self._images):
                path = paths.image_file(self._images, txid)
                with suppress(FileNotFoundError):  # a checkpoint removed it meanwhile
                    size = path.stat().st_size
                    try:
                        images.append(StoredImage(txid, size, image.verify(path), None))
                    except (CorruptImage, UnsupportedVersion) as error:
                        images.append(StoredImage(txid, size, None, error))
        return images

    def segments(self) -> list[SegmentFacts]:
        """All segments, in order."""
        facts = []
        with self._environment.read_databases() as transaction:
            with transaction.cursor() as cursor:
                names = [bytes(name).decode("ascii", "backslashreplace") for name in cursor.iternext(values=False)]
            for name in names:
                database = self._environment.database_within(transaction, name)
                with transaction.cursor(db=database) as cursor:
                    first = _txid(cursor.key()) if cursor.first() else None
                    last = _txid(cursor.key()) if cursor.last() else None
                    facts.append(SegmentFacts(name, first, last, int(transaction.stat(database)["entries"])))
        return facts

    def edits(self, first: int) -> Iterator[tuple[Txid, bytes]]:
        """Edits of the segment that begins with this txid, in their stored bytes.

        Raises:
            InvalidRequest: No segment begins with it.
        """
        facts = next((each for each in self.segments() if each.first == first), None)
        if facts is None:
            raise InvalidRequest("The journal has no segment with this first edit; see `kvstore meta ls`.", first=first)
        yield from self._from(facts.name, 0)

    def edits_after(self, txid: int) -> list[bytes]:
        """Stored bytes of the edits after one, in order, or from the first one that the journal still has."""
        txid = integer_within("txid", txid, 0, OFFSET_MAX - 1)
        segments = [each for each in self.segments() if each.last is not None and each.last > txid]
        return [data for each in segments for _, data in self._from(each.name, txid + 1)]

    def edit(self, txid: int) -> bytes:
        """Stored bytes of an edit.

        Raises:
            InvalidRequest: The journal does not have this edit.
        """
        for facts in self.segments():
            if facts.first is not None and facts.last is not None and facts.first <= txid <= facts.last:
                for number, data in self._from(facts.name, txid, most=1):
                    if number == txid:
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
def browse_catalog(store: Path | str, files: Files | None = None) -> Iterator[CatalogBrowser]:
    """Read the files of a store's catalog, without opening the store; leaving the context closes them.

    For programs that inspect a store, also one that can't be opened. :func:`logformat.catalog.edits.decode` reads the
    bytes of an edit: a change of a table, writer, consumer, replica or job, and its time.

    Args:
        store: Directory of the store.
        files: The disk, for tests.

    Raises:
        NotAStore: There is no journal.
        CorruptData: The file is too damaged for LMDB to open.
    """
    path = path_of(store)
    try:
        environment = open_environment(path / paths.JOURNAL, files or Files(), map_bytes=MAP_BYTES, read_only=True)
    except FileNotFoundError as error:
        raise NotAStore("There is no journal of a catalog here; check the path.", path=path) from error
    with closing(environment):
        yield CatalogBrowser(path, environment)


def _txid(key: bytes) -> Txid:
    return Txid(int.from_bytes(key, "big", signed=True))
