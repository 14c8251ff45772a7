"""How far the entries of a secondary index are in a bucket's index (docs/format.md, Entries of a secondary index)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion

VERSION = 1
LAYOUT = "<IHHIIqQ"
"""Layout of a record, for ``struct``."""
NOT_WHOLE = -1
"""The applied offset of entries that are no use: not all were made yet, or rows changed without them."""


class EntriesRecord(NamedTuple):
    """The entries of one secondary index.

    Attributes:
        applied_offset: They belong to the rows of the index if its state has this one; :data:`NOT_WHOLE` never does.
        entry_count: How many there are.
    """

    applied_offset: int
    entry_count: int


def encode(index_id: int, record: EntriesRecord) -> bytes:
    """The record, 32 bytes."""
    body = struct.pack(LAYOUT[0] + LAYOUT[2:], VERSION, 0, index_id, 0, *record)
    return struct.pack("<I", crc32c(body)) + body


def decode(index_id: int, data: bytes) -> EntriesRecord:
    """Decode the record of a secondary index.

    Raises:
        CorruptData: The record is damaged, or of another secondary index.
        UnsupportedVersion: A newer version wrote it.
    """
    size = struct.calcsize(LAYOUT)
    if len(data) < size or struct.unpack_from("<I", data)[0] != crc32c(memoryview(data)[4:]):
        raise CorruptData("The record of an index's entries fails its checksum; run `kvstore check`.", index=index_id)
    _, version, _, stored_id, _, applied, count = struct.unpack_from(LAYOUT, data)
    if version != VERSION:
        raise UnsupportedVersion("The entries of an index are of a newer kvstore; upgrade.", version=version)
    if len(data) != size or stored_id != index_id:
        raise CorruptData("The record of an index's entries is of another one; run `kvstore check`.", index=index_id)
    return EntriesRecord(applied, count)
