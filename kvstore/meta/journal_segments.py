"""Names of the journal's segments: each is the txid of the segment's first edit, in decimal digits."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import lmdb

from kvstore.disk.address_space import shortage
from kvstore.disk.environment import Transaction
from kvstore.errors import CorruptImage, StoreFull
from kvstore.meta.state import CatalogState
from logformat.ids import Txid

_NAME_DIGITS = 20


def segments_of(transaction: Transaction) -> list[str]:
    """Names of the segments that a transaction sees, in order.

    Raises:
        CorruptImage: A name is damaged.
    """
    with transaction.cursor() as cursor:
        names = [bytes(name) for name in cursor.iternext(values=False)]
    for name in names:
        if len(name) != _NAME_DIGITS or not name.isdigit():
            raise CorruptImage("A segment of the catalog has a damaged name; run `kvstore check`.", name=name)
    return [name.decode() for name in names]


def check_name(cursor: lmdb.Cursor[bytes], name: str) -> None:
    """Verify that a segment is named after its first edit.

    Raises:
        CorruptImage: It is not.
    """
    if not cursor.first() or segment_name(Txid(int.from_bytes(cursor.key(), "big"))) != name:
        raise CorruptImage("A segment of the catalog has a wrong name; run `kvstore check`.", name=name)


def needed_segments(names: list[str], state: CatalogState) -> list[str]:
    """Segments that may have edits which a state lacks; the last segment always."""
    return [
        name for name, following in zip_longest(names, names[1:]) if not following or int(following) > state.txid + 1
    ]


def segment_name(first: Txid) -> str:
    """Name of the segment that begins with an edit."""
    return f"{first:0{_NAME_DIGITS}d}"


def refusal(error: lmdb.Error, journal: Path) -> StoreFull:
    """The error of the store for one of LMDB in writing a journal."""
    if isinstance(error, lmdb.MemoryError):
        return shortage(journal, error)
    return StoreFull("The catalog can't be written; free some space.", reason=str(error))
