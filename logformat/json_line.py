"""Encoding of a struct as one line of JSON; its last field ``crc32c`` is the checksum of the others."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion

T = TypeVar("T", bound=msgspec.Struct)


class _Version(msgspec.Struct):
    format: int


def encode(struct: msgspec.Struct) -> bytes:
    """Encode the line; the struct's first field is ``format``."""
    body = msgspec.json.encode(struct)
    return b'%b,"crc32c":%d}\n' % (body[:-1], crc32c(body))


def decode(data: bytes, kind: type[T], format: int, name: str) -> T:
    """Decode a line.

    Args:
        format: The newest format that this version writes; it reads those before it, from 1 on.
        name: Name of the file or object, for messages.

    Raises:
        CorruptData: The line is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    body, _, sum = data.rpartition(b',"crc32c":')
    if sum != b"%d}\n" % crc32c(body + b"}"):
        raise CorruptData(f"{name} fails its checksum.")
    try:
        if not 1 <= msgspec.json.decode(body + b"}", type=_Version).format <= format:
            raise UnsupportedVersion(f"A newer version wrote {name}; upgrade kvstore.")
        return msgspec.json.decode(body + b"}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"{name} is not JSON, or has other fields.") from error
