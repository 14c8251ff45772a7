"""Checksums made right after bytes were changed: else they keep from a parser all that they are there to keep from it.

Every function takes bytes that may be anything, and changes nothing of them but checksums, or lengths where it says so.
"""

from __future__ import annotations

import struct

from logformat.catalog.image import Foot, encode_record
from logformat.checksum import crc32c
from logformat.log.batch import ALIGNMENT, LAYOUTS, LOG_OVERHEAD, MAGIC

_EDIT = "<HHqqq"


def frame(data: bytes, *, stretch: bool) -> bytes:
    """A record batch; with ``stretch`` its length is that of the data too."""
    whole = bytearray(data)
    if len(whole) <= LOG_OVERHEAD or whole[LOG_OVERHEAD] >= len(LAYOUTS):
        return data
    magic = whole[LOG_OVERHEAD]
    layout = LAYOUTS[magic]
    if stretch:
        whole += bytes(-len(whole) % ALIGNMENT) if magic == MAGIC else b""
        struct.pack_into("<i", whole, 8, len(whole) - LOG_OVERHEAD)
    if len(whole) < layout.size:
        return bytes(whole)
    size = min(max(struct.unpack_from("<i", whole, 8)[0] + LOG_OVERHEAD, 0), len(whole))
    view = memoryview(whole)[:size]
    before = crc32c(view[: layout.checksum_from - 4]) if magic == MAGIC else 0
    crc = crc32c(view[layout.checksum_from :], before)
    view.release()
    struct.pack_into("<I", whole, layout.checksum_from - 4, crc)
    return bytes(whole)


def first_word(data: bytes, before: bytes = b"") -> bytes:
    """What begins with the checksum of the rest: an edit, a writer's entry after its id, the state of an index."""
    return struct.pack("<I", crc32c(before + data[4:])) + data[4:]


def last_word(data: bytes) -> bytes:
    """What ends with the checksum of all before it: a writers' snapshot, a segment's head, an entry of its index."""
    return data[:-4] + struct.pack("<I", crc32c(data[:-4]))


def line(data: bytes) -> bytes:
    """A JSON object without its last brace, as one line whose last field is the checksum of the others."""
    return b'%b,"crc32c":%d}\n' % (data, crc32c(data + b"}"))


def edit(op: int, txid: int, payload: bytes, *, version: int = 1, epoch: int = 0) -> bytes:
    """An edit of the catalog."""
    return first_word(bytes(4) + struct.pack(_EDIT, op, version, txid, epoch, 1_000 * txid) + payload)


def image(records: list[bytes]) -> bytes:
    """An image of these bodies, with a foot that is right."""
    whole = b"".join(map(_record, records))
    return whole + encode_record(Foot(crc32c=crc32c(whole)))


def _record(body: bytes) -> bytes:
    length = struct.pack("<I", len(body))
    return length + struct.pack("<I", crc32c(body, crc32c(length))) + body


def object_of_replica(data: bytes, head: str, crc_at: int) -> bytes:
    """An object of a replica: length and checksum of its body, then that of its head."""
    size = struct.calcsize(head)
    if len(data) < size:
        return data
    body = data[size:]
    whole = bytearray(data)
    struct.pack_into("<QI", whole, crc_at - 12, len(body), crc32c(body))
    struct.pack_into("<I", whole, crc_at, crc32c(whole[:crc_at]))
    return bytes(whole)
