"""A struct as one line of JSON, whose last field ``crc32c`` is the checksum of the others."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion

T = TypeVar("T", bound=msgspec.Struct)


class _Version(msgspec.Struct):
    format: int


def encode(struct: msgspec.Struct) -> bytes:
    """The line; the struct's first field is ``format``."""
    body = msgspec.json.encode(struct)
    return b'%b,"crc32c":%d}\n' % (body[:-1], crc32c(body))


def decode(data: bytes, kind: type[T], format: int, name: str) -> T:
    """What :func:`encode` wrote.

    Args:
        format: The one this version writes.
        name: Of what is read, for messages.

    Raises:
        CorruptData: It is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    body, _, sum = data.rpartition(b',"crc32c":')
    if sum != b"%d}\n" % crc32c(body + b"}"):
        raise CorruptData(f"{name} fails its checksum.")
    try:
        if msgspec.json.decode(body + b"}", type=_Version).format != format:
            raise UnsupportedVersion(f"A newer kvstore wrote {name}; upgrade.")
        return msgspec.json.decode(body + b"}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"{name} is no JSON, or has other fields.") from error
