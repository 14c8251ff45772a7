"""Requests as the content of a frame: the arguments of a write of one bucket, which the owner checks like any other.

Rows are an Arrow record batch. Of a few rows their stored bytes are sent instead, which have a checksum each: no Arrow
is needed then on either side. Conditions are keys with the bytes that are expected to be stored there. No code is sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence as Several
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from kvstore.errors import InvalidRequest, StoreError
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Reply
from kvstore.request.encoded import AddedRequest, ComparedRequest, SmallRequest, encoded_writes
from kvstore.request.preparation import fitted, request_of
from kvstore.request.request import Request
from kvstore.request.sums import Amounts, StoredSums
from kvstore.sending.frames import BadFrame
from logformat.ids import Epoch, SchemaId, Sequence, WriterId
from logformat.log import arrow_message
from logformat.rows.changes import Changes
from logformat.rows.few.few_rows import Cells, Operation
from logformat.rows.keys import KEY_BYTES_MAX

_HEAD = struct.Struct("<qiiiBIIII")
_OVERWRITE, _SKIPS_IDENTICAL, _HAS_TARGETS, _HAS_CONDITIONS = 1, 2, 4, 8
_COUNT = struct.Struct("<I")
VALUES_MAX, VALUES_BYTES_MAX = 64, 1 << 16
"""How many stored values an answer has at most, and of how many bytes together."""
_PAIR = struct.Struct("<II")


_FEW = struct.Struct("<qiiHHI")
_NUMBERS = struct.Struct("<qi")
"""With what each of these begins."""
_ADD = struct.Struct("<qiiHI")
_CELL = struct.Struct("<I")
_VALUE = struct.Struct("<i")


class Altered(Exception):
    """The rows do not fit the table as it is now, so they have to be sent as columns."""


class Condition(NamedTuple):
    """Stored bytes that a write expects.

    Attributes:
        keys: Encoded keys.
        stored: For each the value; empty if there is to be none.
    """

    keys: list[bytes]
    stored: list[bytes]


def encode(request: Request, definition: TableDefinition, condition: Condition | None = None) -> bytes:
    """A request, and on what it depends, as bytes."""
    rows = _given(request, definition)
    flags = _OVERWRITE * request.overwrite | _SKIPS_IDENTICAL * request.skips_identical
    targets = conditions = b""
    if request.targets is not None:
        flags |= _HAS_TARGETS
        targets = json.dumps(sorted(request.targets)).encode()
    if condition is not None:
        flags |= _HAS_CONDITIONS
        conditions = _encoded(condition)
    deletes = np.packbits(request.changes.is_delete.to_numpy(zero_copy_only=False)).tobytes()
    schema_id = definition.schema_id if request.schema_id is None else request.schema_id
    numbers = request.writer_id, request.sequence, request.writer_epoch
    parts = targets, memoryview(rows.schema.serialize()), conditions, deletes
    head = _HEAD.pack(*numbers, schema_id, flags, *map(len, parts))
    return b"".join((head, *parts, memoryview(arrow_message.encode(rows))))


def encode_few(request: SmallRequest, condition: Condition | None = None) -> bytes:
    """A request of few rows, and on what it depends, as bytes."""
    conditions = b"" if condition is None else _encoded(condition)
    numbers = request.writer_id, request.sequence, request.writer_epoch
    pieces = [_FEW.pack(*numbers, request.writes.schema_id, request.count, len(conditions)), conditions]
    for each in request.operations:
        pieces.append(_VALUE.pack(-1 if each.value is None else len(each.value)))
        pieces += _cells(each)
        if each.value is not None:
            pieces.append(each.value)
    return b"".join(pieces)


def decode_few(content: bytes, definition: TableDefinition, answer: Reply[Any]) -> SmallRequest | ComparedRequest:
    """The request in such bytes.

    Args:
        answer: Of the request.

    Raises:
        Altered: They are no small write of the table as it is now.
        BadFrame: The bytes are no request.
    """
    try:
        writer_id, sequence, epoch, schema_id, count, conditions = _FEW.unpack_from(content)
        writes = encoded_writes(definition)
        if writes is None or writes.schema_id != schema_id:
            raise Altered
        place = _FEW.size
        condition = _condition(memoryview(content)[place : place + conditions]) if conditions else None
        place += conditions
        operations = []
        for _ in range(count):
            (length,) = _VALUE.unpack_from(content, place)
            key, place = _key_in(content, place + _VALUE.size, definition)
            value = None if length < 0 else content[place : place + length]
            place += max(length, 0)
            if (operation := writes.rows.received(key, value)) is None:
                raise BadFrame
            operations.append(operation)
        if place != len(content) or not operations:
            raise BadFrame
        if not writes.takes(operations):
            raise Altered  # it may refuse deletes since
    except (struct.error, ValueError) as error:
        raise BadFrame from error
    numbers = WriterId(writer_id), Sequence(sequence), Epoch(epoch)
    request = SmallRequest(operations, writes, answer, *numbers)
    return request if condition is None else ComparedRequest(condition.keys, condition.stored, request, answer)


def encode_add(request: SmallRequest, sums: StoredSums) -> bytes:
    """Numbers that are added to the row of a key, as bytes.

    Args:
        request: Has the writer, the sequence and the epoch.
    """
    amounts = json.dumps(sums.amounts).encode()
    numbers = request.writer_id, request.sequence, request.writer_epoch
    return b"".join([_ADD.pack(*numbers, request.writes.schema_id, len(amounts)), amounts, *_cells(sums.key)])


def decode_add(content: bytes, definition: TableDefinition, answer: Reply[Any]) -> AddedRequest:
    """The request in such bytes. Args and errors are those of :func:`decode_few`."""
    try:
        writer_id, sequence, epoch, schema_id, amounts_bytes = _ADD.unpack_from(content)
        writes = encoded_writes(definition)
        if writes is None or writes.schema_id != schema_id:
            raise Altered
        place = _ADD.size + amounts_bytes
        amounts = Amounts.given(definition, json.loads(content[_ADD.size : place]))
        key, place = _key_in(content, place, definition)
        operation = writes.rows.received(key, None)
        sums = None if operation is None or writes.keeps_first else StoredSums.of(writes, operation, amounts)
    except (struct.error, ValueError, RecursionError, InvalidRequest) as error:
        raise BadFrame from error
    if sums is None or place != len(content):
        raise BadFrame
    numbers = WriterId(writer_id), Sequence(sequence), Epoch(epoch)
    return AddedRequest(sums, SmallRequest([], writes, Reply(), *numbers), answer)


def decode(content: bytes, definition: TableDefinition, answer: Reply[Any]) -> Request | ComparedRequest:
    """The request in such bytes, checked as any that a caller of this process makes.

    Args:
        answer: Of the request.

    Raises:
        InvalidRequest: Its content is refused.
        BadFrame: The bytes are no request.
    """
    try:
        *numbers, schema_id, flags, targets_bytes, schema_bytes, conditions_bytes, deletes_bytes = _HEAD.unpack_from(
            content
        )
        place, parts = _HEAD.size, []
        for length in (targets_bytes, schema_bytes, conditions_bytes, deletes_bytes):
            parts.append(memoryview(content)[place : place + length])
            place += length
        targets, schema, conditions, deletes = parts
        columns = _schema_in(bytes(schema))
        rows = arrow_message.decode(memoryview(content)[place:], columns, columns.names, validate=True)
        flagged = np.unpackbits(np.frombuffer(deletes, np.uint8))[: rows.num_rows]
        changes = Changes(rows, pa.array(flagged.astype(bool)))
        names = json.loads(bytes(targets)) if flags & _HAS_TARGETS else None
        condition = _condition(conditions) if flags & _HAS_CONDITIONS else None
    except (struct.error, ValueError, TypeError, IndexError, RecursionError, pa.ArrowException, StoreError) as error:
        raise BadFrame from error
    overwrite = bool(flags & _OVERWRITE)
    fitting, chosen = fitted(changes, definition, SchemaId(schema_id), names, overwrite=overwrite)
    writer_id, sequence, epoch = numbers
    request = request_of(
        *(fitting, definition, WriterId(writer_id), Sequence(sequence), Epoch(epoch)),
        targets=chosen,
        overwrite=overwrite,
        answer=answer,
    )
    if flags & _SKIPS_IDENTICAL:
        request = replace(request, skips_identical=True)
    return request if condition is None else ComparedRequest(condition.keys, condition.stored, request, answer)


def encode_values(values: Several[bytes]) -> bytes:
    """Keys, or stored values, as bytes; none if they are too many or too large."""
    if len(values) > VALUES_MAX or sum(map(len, values)) > VALUES_BYTES_MAX:
        return b""
    return b"".join([piece for value in values for piece in (_COUNT.pack(len(value)), value)])


def decode_values(content: bytes) -> list[bytes]:
    """The values in such bytes.

    Raises:
        BadFrame: The bytes are none.
    """
    place, values = 0, []
    try:
        while place < len(content):
            (length,) = _COUNT.unpack_from(content, place)
            place += _COUNT.size
            values.append(content[place : place + length])
            place += length
    except struct.error as error:
        raise BadFrame from error
    if place != len(content) or len(values) > VALUES_MAX:
        raise BadFrame
    return values


def keys_in(content: bytes) -> list[bytes]:
    """The keys in such bytes. Raises what :func:`decode_values` does."""
    keys = decode_values(content)
    if not all(0 < len(key) <= KEY_BYTES_MAX for key in keys):
        raise BadFrame
    return keys


def numbers_in(content: bytes) -> tuple[WriterId, Sequence]:
    """Writer and sequence of the request in such bytes.

    Raises:
        BadFrame: The bytes are no request.
    """
    if len(content) < _NUMBERS.size:
        raise BadFrame
    writer_id, sequence = _NUMBERS.unpack_from(content)
    return WriterId(writer_id), Sequence(sequence)


def _cells(operation: Operation) -> list[bytes]:
    return [piece for cell in operation.key for piece in (_CELL.pack(len(cell)), cell)]


def _key_in(content: bytes, place: int, definition: TableDefinition) -> tuple[Cells, int]:
    """The cells of a key, and the place after them."""
    key = []
    for _ in definition.primary_key or ():
        (cell_bytes,) = _CELL.unpack_from(content, place)
        place += _CELL.size
        key.append(content[place : place + cell_bytes])
        place += cell_bytes
    return tuple(key), place


def _given(request: Request, definition: TableDefinition) -> pa.RecordBatch:
    """The columns of a request that its caller has given."""
    rows, automatic = request.changes.rows, definition.options.auto_increment
    names: Several[str] = rows.schema.names
    if request.targets is not None:
        names = [name for name in names if name in request.targets]
    elif automatic is not None and not request.overwrite:
        names = [name for name in names if name != automatic]
    return rows if len(names) == len(rows.schema.names) else rows.select(names)


@lru_cache(maxsize=64)
def _schema_in(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _encoded(condition: Condition) -> bytes:
    pairs = zip(condition.keys, condition.stored, strict=True)
    encoded_pairs = [_PAIR.pack(len(key), len(value)) + key + value for key, value in pairs]
    return _COUNT.pack(len(encoded_pairs)) + b"".join(encoded_pairs)


def _condition(data: memoryview) -> Condition:
    (count,) = _COUNT.unpack_from(data)
    place, keys, stored = _COUNT.size, [], []
    for _ in range(count):
        key_bytes, value_bytes = _PAIR.unpack_from(data, place)
        place += _PAIR.size
        keys.append(bytes(data[place : place + key_bytes]))
        stored.append(bytes(data[place + key_bytes : place + key_bytes + value_bytes]))
        place += key_bytes + value_bytes
        if place > len(data) or not 0 < key_bytes <= KEY_BYTES_MAX:
            raise ValueError
    return Condition(keys, stored)
