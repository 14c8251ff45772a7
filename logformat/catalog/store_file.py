"""The file ``STORE``: identifies a directory as a store (docs/format.md, STORE)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat.checksum import crc32c
from logformat.errors import CorruptImage, UnsupportedVersion

FORMAT = 1
"""Version of everything in the directory."""
STORE_BYTES_MAX = 1 << 12


class StoreFile(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a store."""

    format: int = FORMAT
    store_id: UUID
    created_ms: int


class _Written(StoreFile, frozen=True, kw_only=True):
    crc32c: int


class _Version(msgspec.Struct):
    format: int


def encode(store: StoreFile) -> bytes:
    """One line of JSON; its last field is the checksum of the others."""
    values = msgspec.structs.asdict(store)
    return msgspec.json.encode(_Written(**values, crc32c=crc32c(msgspec.json.encode(values)))) + b"\n"


def decode(data: bytes) -> StoreFile:
    """Decode the file.

    Raises:
        CorruptImage: The file is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).format
        if version > FORMAT:
            raise UnsupportedVersion("This store was written by a newer version; upgrade kvstore.", format=version)
        written = msgspec.json.decode(data, type=_Written)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptImage("The file STORE can't be read; restore it from a copy.", reason=str(error)) from error
    store = StoreFile(format=written.format, store_id=written.store_id, created_ms=written.created_ms)
    if encode(store) != data:
        raise CorruptImage("The file STORE fails its checksum; restore it from a copy.")
    return store
