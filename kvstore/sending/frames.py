"""Frames between a sender and the owner of a bucket, as bytes.

* A frame is its length, a checksum, one byte for its kind, and its content. Integers are little-endian.
* The first frame of a sender is a greeting. Its beginning never changes: so a process of any version can refuse the
  version of another one by name.
* A frame that is too long, fails its checksum or has another form ends the connection, and nothing else.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from kvstore import errors
from kvstore.errors import StoreError
from kvstore.request.results import AppendResult
from logformat.ids import BucketId, Offset, TableId

VERSION = 3
"""Version of the frames. A sender and an owner of different versions refuse each other."""
FRAME_BYTES_MAX = 8 << 20
_HEAD = struct.Struct("<II")
_MAGIC = b"KVSENDER"
_GREETING = struct.Struct("<8sH16s16sQIQQ")
_WELCOME = struct.Struct("<H16s")
_NUMBER = struct.Struct("<Q")
_WRITTEN = struct.Struct("<QqqqB")


class Kind(IntEnum):
    """Kind of a frame."""

    GREETING = 1
    WELCOME = 2
    REFUSED = 3
    """In place of WELCOME: an error, after which the connection ends."""
    WRITE = 4
    WRITE_FEW = 5
    """The same of few rows, as they are stored."""
    BARRIER = 6
    """Answered by UNCHANGED once everything before it is applied; it may name keys."""
    WRITTEN = 7
    UNCHANGED = 8
    """A condition was not met; nothing was written. It may say what is stored for the keys."""
    FAILED = 9
    """An error; nothing was written."""
    ALTERED = 10
    """The table was altered, so that few rows have to be sent as a WRITE; nothing was done."""
    NOT_OWNER = 11
    """The process does not own the bucket any more; nothing was done."""
    TRANSACT = 12
    """A transaction over several buckets, to be committed by the process that owns the first one."""
    TRANSACTED = 13
    CHANGED = 14
    """A row that a transaction has read is another one; nothing was written."""
    HOLD = 15
    """Answered by UNCHANGED as a BARRIER is; then the bucket waits for a write of the same number, for a short time."""
    GIVE_UP = 16
    """In place of this write: there is nothing to write. It gets no answer."""
    ADD = 17
    """Numbers that are added to a row, if there is one. The answer WRITTEN has the row, unless it is a duplicate's."""


_KINDS = {int(kind): kind for kind in Kind}


class BadFrame(Exception):
    """What came is no frame of this protocol."""


class Greeting(NamedTuple):
    """What a sender says first.

    Attributes:
        sender: The same for every connection of a sender: what an owner has not read of an earlier one is dropped.
        lock: Device and inode of the lock that the owner holds.
    """

    version: int
    sender: UUID
    store_id: UUID
    table: TableId
    bucket: BucketId
    lock: tuple[int, int]

    def encode(self) -> bytes:
        """The frame."""
        ids = self.sender.bytes, self.store_id.bytes, self.table, self.bucket
        return frame(Kind.GREETING, _GREETING.pack(_MAGIC, self.version, *ids, *self.lock))

    @classmethod
    def decode(cls, content: bytes) -> Greeting:
        """The greeting in a frame; of another version only the version counts.

        Raises:
            BadFrame: It is none.
        """
        if len(content) < _GREETING.size or not content.startswith(_MAGIC):
            raise BadFrame
        _, version, sender, store_id, table, bucket, device, inode = _GREETING.unpack_from(content)
        ids = UUID(bytes=sender), UUID(bytes=store_id), TableId(table), BucketId(bucket)
        return cls(version, *ids, (device, inode))


def frame(kind: Kind, *content: bytes | memoryview) -> bytes:
    """A frame."""
    body = b"".join((bytes((kind,)), *content))
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def frames_in(buffer: bytearray) -> Iterator[tuple[Kind, bytes]]:
    """Whole frames at the beginning of a buffer, which are taken out of it.

    Raises:
        BadFrame: The buffer does not begin with a frame.
    """
    while len(buffer) >= _HEAD.size:
        length, checksum = _HEAD.unpack_from(buffer)
        if not 0 < length <= FRAME_BYTES_MAX:
            raise BadFrame
        end = _HEAD.size + length
        if len(buffer) < end:
            return
        body = bytes(buffer[_HEAD.size : end])
        del buffer[:end]
        if zlib.crc32(body) != checksum:
            raise BadFrame
        if (kind := _KINDS.get(body[0])) is None:
            raise BadFrame
        yield kind, body[1:]


def welcome(owner: UUID) -> bytes:
    """The frame by which an owner takes a sender.

    Args:
        owner: Of this time of owning buckets; another one after a restart.
    """
    return frame(Kind.WELCOME, _WELCOME.pack(VERSION, owner.bytes))


def numbered(kind: Kind, number: int, *content: bytes) -> bytes:
    """A frame about the request of a number."""
    return frame(kind, _NUMBER.pack(number), *content)


def number_in(content: bytes) -> tuple[int, bytes]:
    """The number in such a frame, and the rest.

    Raises:
        BadFrame: There is none.
    """
    if len(content) < _NUMBER.size:
        raise BadFrame
    return _NUMBER.unpack_from(content)[0], content[_NUMBER.size :]


def written(number: int, result: AppendResult, row: bytes = b"") -> bytes:
    """The frame of the answer to a write.

    Args:
        row: The row that was stored, if numbers were added to it.
    """
    offsets = result.first_offset, result.last_offset
    return frame(Kind.WRITTEN, _WRITTEN.pack(number, *offsets, result.timestamp_ms, result.duplicated), row)


def result_in(content: bytes) -> tuple[AppendResult, bytes]:
    """The result in such a frame, and the row that was stored, if it says so.

    Raises:
        BadFrame: There is none.
    """
    if len(content) < _WRITTEN.size:
        raise BadFrame
    _, first, last, timestamp, duplicated = _WRITTEN.unpack_from(content)
    return AppendResult(Offset(first), Offset(last), bool(duplicated), timestamp), content[_WRITTEN.size :]


def encode_error(error: StoreError) -> bytes:
    """An error as the content of a frame."""
    where = {name: fact if isinstance(fact, (int, str)) else str(fact) for name, fact in error.where.items()}
    return json.dumps([type(error).__name__, error.message, where]).encode()


def decode_error(content: bytes) -> StoreError:
    """The error in such a content.

    Raises:
        BadFrame: There is none.
    """
    try:
        name, message, where = json.loads(content)
        kind: Any = getattr(errors, name) if name in errors.__all__ else StoreError
        raised = kind(str(message))
        raised.where.update(where)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadFrame from error
    if not isinstance(raised, StoreError):
        raise BadFrame
    return raised
