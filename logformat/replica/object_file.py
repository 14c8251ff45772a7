"""Objects of a replica: their names and contents (docs/format.md, Replica).

* An object identifies itself: decoding detects an object under another's name, or of another store.
* The contents are parts; each part has its own checksum, and the whole object has one.
* Only names of the known forms count: no other name in a listing ever becomes a path.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from logformat.catalog.replicas import CATALOG, Stream
from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion
from logformat.ids import BucketId, Epoch, TableId

Kind = Literal["range", "snapshot"]

FORMAT = 1
PARTS_MAX = 1 << 20
LEADER_BYTES_MAX = 1 << 12
"""Size limit of a leader object."""
_MAGIC = b"KVRO"
_KINDS: tuple[Kind, ...] = ("range", "snapshot")
HEAD = "<4sHH16sqi4xqqqQII"
"""Layout of the head of an object, for ``struct``."""
HEAD_BYTES = struct.calcsize(HEAD)
CRC_AT = HEAD_BYTES - 4
"""Position of the head's own checksum."""
_PART = "<Q"
_PART_BYTES = struct.calcsize(_PART)
CATALOG_PREFIX = "catalog"
TABLES_PREFIX = "tables"
_DIGITS = "([0-9]{20})"
_NAME = re.compile(
    rf"(?:{CATALOG_PREFIX}|{TABLES_PREFIX}/(0|[1-9][0-9]{{0,18}})/(0|[1-9][0-9]{{0,9}}))/"
    rf"(?:{_DIGITS}-{_DIGITS}\.{_DIGITS}\.range|{_DIGITS}\.{_DIGITS}\.snapshot)"
)
_CLAIM = b"claim "
_LEADER = re.compile(rf"leader/{_DIGITS}")
_NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """Identity of an object, and its name.

    Attributes:
        start, end: A range has all offsets from ``start``, inclusive, to ``end``, exclusive; a snapshot has everything
            before ``start``, which equals ``end``.
        epoch: Epoch of the leader that wrote it.
    """

    stream: Stream
    kind: Kind
    start: int
    end: int
    epoch: Epoch

    def __str__(self) -> str:
        """The name, relative to the replica's URL."""
        offsets = f"{self.start:020d}-{self.end:020d}" if self.kind == "range" else f"{self.start:020d}"
        return f"{place_of_stream(self.stream)}/{offsets}.{self.epoch:020d}.{self.kind}"


def place_of_stream(stream: Stream) -> str:
    """What the names of a stream's objects begin with, before a ``/``."""
    return CATALOG_PREFIX if stream == CATALOG else f"{TABLES_PREFIX}/{stream.table_id}/{stream.bucket}"


def parse_name(name: str) -> ObjectName | None:
    """The identity in an object's name; None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    table, bucket, *numbers = match.groups()
    parsed = [int(number) for number in numbers if number is not None]
    start, end, epoch = parsed if len(parsed) == 3 else (parsed[0], *parsed)  # a snapshot has one offset
    stream = CATALOG if table is None else Stream(TableId(int(table)), BucketId(int(bucket)))
    if max(start, end, epoch, stream.table_id) > _NUMBER_MAX or stream.bucket >= 2**31:
        return None
    kind: Kind = "range" if len(parsed) == 3 else "snapshot"
    return ObjectName(stream, kind, start, end, Epoch(epoch)) if kind == "snapshot" or start < end else None


def leader_name(epoch: Epoch) -> str:
    """Name of the object that records the start of a leader of this epoch."""
    return f"leader/{epoch:020d}"


def leader_epoch(name: str) -> Epoch | None:
    """The epoch in the name of a leader object; None for any other name."""
    match = _LEADER.fullmatch(name)
    return Epoch(int(match[1])) if match and int(match[1]) <= _NUMBER_MAX else None


def claimed_by(leader: str) -> bytes:
    """Content of a leader object during the promotion of the leader: a claim."""
    return _CLAIM + leader.encode()


def is_claim(content: bytes) -> bool:
    """Whether a leader object is the claim of a promotion that has not finished, or died."""
    return content.startswith(_CLAIM)


def is_of(content: bytes, leader: str) -> bool:
    """Whether a leader object belongs to a leader, which leads or is being promoted."""
    return content in (leader.encode(), claimed_by(leader))


def encode_object(name: ObjectName, store_id: UUID, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Encode an object in pieces: a head, then the length and the bytes of each part."""
    body: list[bytes | memoryview] = []
    for part in parts:
        body += [struct.pack(_PART, len(part)), part]
    crc = 0
    for piece in body:
        crc = crc32c(piece, crc)
    head = struct.pack(
        HEAD[:-1],
        *(_MAGIC, FORMAT, _KINDS.index(name.kind), store_id.bytes),
        *(name.stream.table_id, name.stream.bucket, name.start, name.end, name.epoch),
        *(sum(map(len, body)), crc),
    )
    return [head + struct.pack("<I", crc32c(head)), *body]


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object whose checksum is right. Its parts are located but not yet decoded."""

    name: ObjectName
    parts: list[memoryview]


def size_in_head(data: memoryview, name: ObjectName, store_id: UUID) -> int:
    """Size of an object in bytes, as its head states.

    Args:
        data: The head; more bytes may follow.
        name: Name of the object.

    Raises:
        CorruptData: The head is damaged, or belongs to another object.
        UnsupportedVersion: A newer version wrote the object.
    """
    return HEAD_BYTES + _decode_head(data, name, store_id)[0]


def first_part(data: memoryview, name: ObjectName, store_id: UUID) -> memoryview | int:
    """The first part of an object, of which only the head is verified.

    Args:
        data: The beginning of the object.
        name: Name of the object.

    Returns:
        The part; or, if ``data`` does not have all of it, the number of bytes of the object up to its end.

    Raises:
        CorruptData: The head is damaged, or belongs to another object.
        UnsupportedVersion: A newer version wrote the object.
    """
    length, _ = _decode_head(data, name, store_id)
    begin = HEAD_BYTES + _PART_BYTES
    if len(data) < begin:
        return begin
    end = begin + struct.unpack_from(_PART, data, HEAD_BYTES)[0]
    if end > HEAD_BYTES + length:
        raise CorruptData("A part of an object is longer than the object.", object=str(name))
    return data[begin:end] if end <= len(data) else end


def decode_object(data: memoryview, name: ObjectName, store_id: UUID) -> FoundObject:
    """Verify an object and locate its parts.

    Args:
        data: The whole object.
        name: Name of the object.

    Raises:
        CorruptData: The object is damaged, or is another one.
        UnsupportedVersion: A newer version wrote it.
    """
    length, crc = _decode_head(data, name, store_id)
    body = data[HEAD_BYTES:]
    if length != len(body) or crc != crc32c(body):
        raise CorruptData("An object is cut off, or fails its checksum.", object=str(name), bytes=len(data))
    return FoundObject(name, _parts(body, name))


def _decode_head(data: memoryview, name: ObjectName, store_id: UUID) -> tuple[int, int]:
    """Length and checksum of the bytes after the head."""
    if len(data) < HEAD_BYTES or data[:4] != _MAGIC:
        raise CorruptData("This is not an object of a replica, or it is cut off.", object=str(name), bytes=len(data))
    _magic, version, kind, of, table, bucket, start, end, epoch, length, crc, head_crc = struct.unpack_from(HEAD, data)
    if head_crc != crc32c(data[:CRC_AT]):
        raise CorruptData("The head of an object fails its checksum.", object=str(name))
    if version != FORMAT:
        raise UnsupportedVersion("A newer kvstore wrote this object; upgrade.", object=str(name), format=version)
    head = (of, table, bucket, kind, start, end, epoch)
    if head != (store_id.bytes, *_stream_ids(name), _KINDS.index(name.kind), name.start, name.end, name.epoch):
        raise CorruptData("An object is not the one in its name.", object=str(name), start=start, end=end)
    return length, crc


def _stream_ids(name: ObjectName) -> tuple[int, int]:
    return name.stream.table_id, name.stream.bucket


def _parts(body: memoryview, name: ObjectName) -> list[memoryview]:
    parts: list[memoryview] = []
    while body:
        length = struct.unpack_from(_PART, body)[0] if len(body) >= _PART_BYTES else len(body)
        if not length or length > len(body) - _PART_BYTES or len(parts) == PARTS_MAX:
            raise CorruptData("A part of an object is empty, or longer than the object.", object=str(name))
        parts.append(body[_PART_BYTES : _PART_BYTES + length])
        body = body[_PART_BYTES + length :]
    return parts
