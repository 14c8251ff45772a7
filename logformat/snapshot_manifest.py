"""What stands in a snapshot beside its rows: ``manifest.json`` and ``writers.json`` (docs/format.md, Snapshot)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import UUID

import msgspec

from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion
from logformat.ids import BucketId, Epoch, Offset, Position, SchemaId, TableId, WriterId
from logformat.writer_entry import RememberedBatch, WriterEntry

FORMAT = 1
"""Version of a snapshot."""

_DIGEST = re.compile("[0-9a-f]{16}")
_SEALED = re.compile(rb'(\{.*),"crc32c":([0-9]{1,10})\}\n', re.DOTALL)


class FileSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long a file is, and the checksum of all of it."""

    bytes: int
    crc32c: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a snapshot is of, and what it must be made of.

    Attributes:
        schema_id: Schema whose columns the rows have.
        applied_offset: Changes before it are in the snapshot, others are not.
        log_base, log_position: Where the log had that offset: in the segment of this base, at this byte.
        row_count, last_timestamp, next_count: As in the state record.
        digest: The same, in 16 hexadecimal digits.
        files: The other files, by name.
    """

    format: int = FORMAT
    store_id: UUID
    table_id: TableId
    bucket_id: BucketId
    schema_id: SchemaId
    applied_offset: Offset
    log_base: Offset
    log_position: Position
    row_count: int
    digest: str
    last_timestamp: int
    next_count: int
    created_ms: int
    files: dict[str, FileSum]


class _Version(msgspec.Struct):
    format: int


class _Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    writer_id: WriterId
    epoch: Epoch
    named: bool
    batches: list[RememberedBatch]


class _Writers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: int = FORMAT
    writers: list[_Writer]


def encode_manifest(manifest: Manifest) -> bytes:
    """One line of JSON, whose last field is the checksum of the others."""
    body = msgspec.json.encode(manifest)
    return b'%b,"crc32c":%d}\n' % (body[:-1], crc32c(body))


def decode_manifest(data: bytes) -> Manifest:
    """What :func:`encode_manifest` wrote.

    Raises:
        CorruptData: It is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    sealed = _SEALED.fullmatch(data)
    if sealed is None or crc32c(sealed[1] + b"}") != int(sealed[2]):
        raise CorruptData("The manifest of a snapshot fails its checksum; run `kvstore check`.")
    try:
        version = msgspec.json.decode(sealed[1] + b"}", type=_Version).format
        if version > FORMAT:
            raise UnsupportedVersion("This snapshot was written by a newer kvstore; upgrade.", format=version)
        manifest = msgspec.json.decode(sealed[1] + b"}", type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData("This is no manifest of a snapshot; run `kvstore check`.", reason=str(error)) from error
    if encode_manifest(manifest) != data or not _DIGEST.fullmatch(manifest.digest):
        raise CorruptData("A manifest of a snapshot is not as it was written; run `kvstore check`.")
    return manifest


def encode_writers(writers: Mapping[WriterId, WriterEntry]) -> bytes:
    """Every writer with its whole window, by id, as one line of JSON."""
    listed = [
        _Writer(writer_id=id, epoch=entry.epoch, named=entry.named, batches=list(entry.batches))
        for id, entry in sorted(writers.items())
    ]
    return msgspec.json.encode(_Writers(writers=listed)) + b"\n"


def decode_writers(data: bytes) -> dict[WriterId, WriterEntry]:
    """What :func:`encode_writers` wrote; the manifest has its checksum.

    Raises:
        CorruptData: It is something else.
    """
    try:
        found = msgspec.json.decode(data, type=_Writers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData("Writers of a snapshot can't be read; run `kvstore check`.", reason=str(error)) from error
    return {
        writer.writer_id: WriterEntry(writer.epoch, writer.named, tuple(writer.batches)) for writer in found.writers
    }
