"""The files of a snapshot other than its rows: ``manifest.json`` and ``writers.json`` (docs/format.md, Snapshot)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import UUID

import msgspec

from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion
from logformat.ids import BucketId, Epoch, Offset, Position, SchemaId, TableId, WriterId
from logformat.log.writer_entry import RememberedBatch, WriterEntry

FORMAT = 2
"""Version of a snapshot in which times are uncounted, or went back; one without these is of version 1."""
MANIFEST_BYTES_MAX = 1 << 16
"""It says how large the other files of its snapshot are."""

_DIGEST = re.compile("[0-9a-f]{16}")
_SEALED = re.compile(rb'(\{.*),"crc32c":([0-9]{1,10})\}\n', re.DOTALL)


class FileSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Size and checksum of a whole file."""

    bytes: int
    crc32c: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Identity and contents of a snapshot.

    Attributes:
        schema_id: Schema of the rows.
        applied_offset: The snapshot has the changes before it, and no others.
        log_base, log_position: Position of that offset in the log: the segment's base offset, and the byte in it.
        row_count, last_timestamp, next_count: As in the state record.
        uncounted_ms, back_offset: The same; of version 2 only.
        digest: The same, in 16 hexadecimal digits.
        files: The other files, by name.
    """

    format: int = 1
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
    uncounted_ms: int | msgspec.UnsetType = msgspec.UNSET
    back_offset: Offset | msgspec.UnsetType = msgspec.UNSET
    created_ms: int
    files: dict[str, FileSum]

    @property
    def times(self) -> tuple[int, Offset]:
        """``uncounted_ms`` and ``back_offset``, 0 where they are not there."""
        return _or_zero(self.uncounted_ms), Offset(_or_zero(self.back_offset))


class _Version(msgspec.Struct):
    format: int


class _Writer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    writer_id: WriterId
    epoch: Epoch
    named: bool
    batches: list[RememberedBatch]
    uncounted_ms: int | msgspec.UnsetType = msgspec.UNSET


class _Writers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: int = 1
    writers: list[_Writer]


def encode_manifest(manifest: Manifest) -> bytes:
    """One line of JSON; its last field is the checksum of the others."""
    body = msgspec.json.encode(manifest)
    return b'%b,"crc32c":%d}\n' % (body[:-1], crc32c(body))


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest.

    Raises:
        CorruptData: The manifest is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    sealed = _SEALED.fullmatch(data)
    if sealed is None or crc32c(sealed[1] + b"}") != int(sealed[2]):
        raise CorruptData("The manifest of a snapshot fails its checksum; run `kvstore check`.")
    try:
        version = msgspec.json.decode(sealed[1] + b"}", type=_Version).format
        if version > FORMAT:
            raise UnsupportedVersion("This snapshot was written by a newer version; upgrade kvstore.", format=version)
        manifest = msgspec.json.decode(sealed[1] + b"}", type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData("This is not a manifest of a snapshot; run `kvstore check`.", reason=str(error)) from error
    if encode_manifest(manifest) != data or not _DIGEST.fullmatch(manifest.digest):
        raise CorruptData("The manifest of a snapshot differs from what was written; run `kvstore check`.")
    return manifest


def encode_writers(writers: Mapping[WriterId, WriterEntry]) -> bytes:
    """Encode every writer with its whole window, ordered by id, as one line of JSON."""
    listed = [
        _Writer(
            writer_id=id,
            epoch=entry.epoch,
            named=entry.named,
            batches=list(entry.batches),
            uncounted_ms=entry.uncounted_ms or msgspec.UNSET,
        )
        for id, entry in sorted(writers.items())
    ]
    version = FORMAT if any(entry.uncounted_ms for entry in writers.values()) else 1
    return msgspec.json.encode(_Writers(format=version, writers=listed)) + b"\n"


def decode_writers(data: bytes) -> dict[WriterId, WriterEntry]:
    """Decode writers; the manifest has the checksum of the file.

    Raises:
        CorruptData: The bytes are something else.
    """
    try:
        stored = msgspec.json.decode(data, type=_Writers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData("Writers of a snapshot can't be read; run `kvstore check`.", reason=str(error)) from error
    return {
        writer.writer_id: WriterEntry(writer.epoch, writer.named, tuple(writer.batches), _or_zero(writer.uncounted_ms))
        for writer in stored.writers
    }


def _or_zero(value: int | msgspec.UnsetType) -> int:
    return 0 if isinstance(value, msgspec.UnsetType) else value
