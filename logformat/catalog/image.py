"""An image: the whole catalog as of one edit, as a sequence of records (docs/format.md, Catalog image).

* Every record has its own checksum, and the last one holds a checksum of all bytes before it: no byte is outside both.
* The first record holds the number of records of each kind, the last one marks the end: reading detects truncated,
  duplicated and missing records.
* Decoding rejects a record of an unknown kind or with an unknown field: guessing would lose tables.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from logformat.catalog import jobs
from logformat.catalog.edits import TableOptions, WriterKind
from logformat.catalog.replicas import ReplicaStatus
from logformat.checksum import crc32c
from logformat.errors import CorruptImage, UnsupportedVersion
from logformat.ids import Epoch, JobId, Offset, SchemaId, Sequence, TableId, Txid, WriterId

FORMAT = 1
"""Version of this layout."""
IMAGE_BYTES_MAX = 1 << 32
RECORD_BYTES_MAX = 1 << 28

RECORD_HEAD = "<II"
"""Layout of the head of a record, for ``struct``."""
_RECORD_HEAD_BYTES = struct.calcsize(RECORD_HEAD)
_COVERED = struct.calcsize("<I")
_DAMAGED = "An image of the catalog is damaged; see docs/operations.md, The catalog."


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag=str.lower):
    """Base of the records of an image."""


class Leader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The leader of the store.

    Attributes:
        epoch, name: As in BeginEpoch; 0 and empty before the first.
        lost_to: Epoch of the leader that took this one's place; 0 if none did.
    """

    epoch: Epoch = Epoch(0)
    name: str = ""
    lost_to: Epoch = Epoch(0)


class Head(_Record, frozen=True, kw_only=True):
    """The first record: identity and contents of the image.

    Attributes:
        format: Version of the layout.
        epoch: Epoch of the checkpoint that wrote it: higher than those of earlier images.
        txid: The last edit in it.
        leader: The leader that made this edit.
        created_ms: Time of writing.
        next_table_id, next_writer_id: The next ids that the catalog allocates.
        counts: Number of records of each kind other than head and foot.
    """

    format: int = FORMAT
    store_id: UUID
    epoch: Epoch
    txid: Txid
    leader: Leader = Leader()
    created_ms: int
    next_table_id: TableId
    next_writer_id: WriterId
    counts: dict[str, int]


class Table(_Record, frozen=True, kw_only=True):
    """A table; its schemas follow it."""

    table_id: TableId
    name: str
    primary_key: tuple[str, ...] | None
    bucket_key: tuple[str, ...] | None
    buckets: int
    options: TableOptions


class Schema(_Record, frozen=True, kw_only=True):
    """A schema of a table that precedes it; ``altered`` if an AlterColumns made it, which older versions refuse."""

    table_id: TableId
    schema_id: SchemaId
    columns: list[dict[str, Any]]
    altered: bool | msgspec.UnsetType = msgspec.UNSET


class Writer(_Record, frozen=True, kw_only=True):
    """A named writer of a table."""

    table_id: TableId
    name: str
    writer_id: WriterId
    writer_epoch: Epoch
    type: WriterKind
    run: str | None
    first_epoch: int


class Former(_Record, frozen=True, kw_only=True):
    """The id of a former named writer of a table."""

    table_id: TableId
    writer_id: WriterId


class Commit(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """An open commit; the commits of a table are in the order in which they began."""

    table_id: TableId
    commit_id: str
    writer_id: WriterId
    writer_epoch: Epoch
    sequence: Sequence
    staged: bytes | None = None


class Consumer(_Record, frozen=True, kw_only=True, omit_defaults=True):
    """A consumer or lease of a table."""

    table_id: TableId
    name: str
    offsets: tuple[Offset, ...]
    until_ms: int | None
    filter: str | None = None


class Job(_Record, frozen=True, kw_only=True):
    """An ingestion job of a table."""

    table_id: TableId
    job_id: JobId
    job: jobs.JobStatus


class Replica(_Record, frozen=True, kw_only=True):
    """A replica of the store."""

    name: str
    replica: ReplicaStatus


class Foot(_Record, frozen=True, kw_only=True):
    """The last record; ``crc32c`` is that of all bytes before it."""

    crc32c: int


Item: TypeAlias = Table | Schema | Writer | Former | Commit | Consumer | Job | Replica
ITEMS: tuple[type[Item], ...] = (Table, Schema, Writer, Former, Commit, Consumer, Job, Replica)
"""Kinds of records between head and foot."""


class _Version(msgspec.Struct):
    format: int = FORMAT


_decode_version = msgspec.json.Decoder(_Version).decode
_decode_record: Callable[[memoryview], Head | Item | Foot] = msgspec.json.Decoder(Head | Item | Foot).decode


def encode_record(record: Head | Item | Foot) -> bytes:
    """One record as the file stores it."""
    body = msgspec.json.encode(record)
    length = struct.pack("<I", len(body))
    return length + struct.pack("<I", crc32c(body, crc32c(length))) + body


def kind_of(record: Item) -> str:
    """Name of a record's kind."""
    return type(record).__name__.lower()


def counts_of(items: Iterable[Item]) -> dict[str, int]:
    """Number of records of each kind, all kinds in their order."""
    counts = Counter(map(kind_of, items))
    return {kind.__name__.lower(): counts[kind.__name__.lower()] for kind in ITEMS}


def encode_image(head: Head, items: Iterable[Item]) -> Iterator[bytes]:
    """An image, record by record.

    Args:
        items: As many as the head counts.
    """
    crc = 0
    for record in _with_head(head, items):
        data = encode_record(record)
        crc = crc32c(data, crc)
        yield data
    yield encode_record(Foot(crc32c=crc))


def _with_head(head: Head, items: Iterable[Item]) -> Iterator[Head | Item]:
    yield head
    yield from items


class Reader:
    """Reads an image from its beginning.

    Args:
        read: Returns the next bytes, as many as asked for; fewer at the end of the file.
        size: Size of the file in bytes. The reader never asks for more, whatever a damaged length says.

    Attributes:
        head: The first record.

    Raises:
        CorruptImage: The image is damaged.
        UnsupportedVersion: A newer version wrote it.
    """

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read = read
        self._left = size
        self._crc = 0
        head = self._next()
        if not isinstance(head, Head):
            raise CorruptImage("This is not a catalog image; give another file.", kind=type(head).__name__.lower())
        self.head = head

    def items(self) -> Iterator[Item]:
        """All records between head and foot. Don't rely on any of them before the last was read.

        Raises:
            CorruptImage: The image is damaged.
            UnsupportedVersion: A newer version wrote it.
        """
        counts = dict.fromkeys(self.head.counts, 0)
        while True:
            crc = self._crc
            record = self._next()
            if isinstance(record, Foot):
                break
            if isinstance(record, Head) or kind_of(record) not in counts:
                raise CorruptImage(_DAMAGED, reason="a record is out of place")
            counts[kind_of(record)] += 1
            yield record
        if record.crc32c != crc or self._read(1):
            raise CorruptImage(_DAMAGED, reason="it fails its checksum, or bytes follow its end")
        if counts != self.head.counts:
            raise CorruptImage(_DAMAGED, reason="records are missing", expected=self.head.counts, found=counts)

    def _next(self) -> Head | Item | Foot:
        data = read_record(self._read, self._left)
        self._left -= len(data)
        self._crc = crc32c(data, self._crc)
        return decode_record(data)


def read_record(read: Callable[[int], bytes], left: int) -> bytes:
    """Read the next record and verify its checksum.

    Args:
        read: Returns the next bytes, as many as asked for; fewer at the end of the file.
        left: Bytes left in the file. The function never asks for more, whatever a damaged length says.

    Raises:
        CorruptImage: The record is damaged.
    """
    head = read(_RECORD_HEAD_BYTES)
    if len(head) < _RECORD_HEAD_BYTES:
        raise CorruptImage(_DAMAGED, reason="it is cut off")
    length, crc = struct.unpack(RECORD_HEAD, head)
    body = read(length) if length <= min(left - _RECORD_HEAD_BYTES, RECORD_BYTES_MAX) else b""
    if len(body) < length or crc != crc32c(body, crc32c(head[:_COVERED])):
        raise CorruptImage(_DAMAGED, reason="a record fails its checksum, or is cut off")
    return head + body


def decode_record(data: bytes) -> Head | Item | Foot:
    """Decode a record that :func:`read_record` verified.

    Raises:
        CorruptImage: The record is not JSON.
        UnsupportedVersion: A newer version wrote it.
    """
    body = memoryview(data)[_RECORD_HEAD_BYTES:]
    try:
        version = _decode_version(body).format
        if version != FORMAT:
            raise UnsupportedVersion("This image was written by a newer version; upgrade kvstore.", format=version)
        return _decode_record(body)
    except msgspec.ValidationError as error:
        raise UnsupportedVersion(
            "This image has a record this version can't read; upgrade kvstore.", reason=str(error)
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptImage("A record of an image is not JSON.", reason=str(error)) from error
