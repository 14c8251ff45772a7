"""Encoding and decoding of the log's record batches (docs/format.md, Record batch).

Magic 0, 1 and 2 are the layouts of Apache Fluss; the store writes magic 3. In all of them:

* ``last offset = base offset + last_offset_delta``, never ``base offset + record count - 1``;
* a batch without records has a delta of 0 and takes one offset;
* decoding reads nothing after the checksum before it has verified the checksum, and allocates nothing for a size before
  it has checked the size against its limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from logformat.checksum import crc32c
from logformat.errors import BatchTooLarge, CorruptBatch, InvalidRequest
from logformat.ids import NO_SEQUENCE, NO_WRITER, OFFSET_MAX, Offset, SchemaId, Sequence as SequenceNumber, WriterId
from logformat.log import arrow_message
from logformat.log.arrow_message import RAW_BYTES_MAX, Compression
from logformat.log.change import ChangeType

MAGIC = 3
"""The magic that the store writes."""
ALIGNMENT = 64
"""Alignment of a batch of magic 3 in its file, of its Arrow message, and of its size."""
BATCH_BYTES_MAX = 1 << 28
RECORDS_MAX = 1 << 24
LOG_OVERHEAD = 12
"""Bytes of base offset and length, which the length does not include."""

APPEND_ONLY = 1
"""Attribute: every record is an append; there is no change type vector."""
NAMED_WRITER = 2
"""Attribute (magic 3): the writer has a name and never expires."""


_COMPUTED = {
    *("length", "magic", "record_count", "last_offset_delta", "statistics_length", "records_position", "crc"),
}


@dataclass(frozen=True)
class Layout:
    """Header of one magic: struct format, field names in order, start of the checksum's range."""

    format: str
    names: tuple[str, ...]
    checksum_from: int
    """The checksum covers everything from here on; in magic 3 also everything before the checksum itself."""

    @cached_property
    def size(self) -> int:
        """Bytes of the header."""
        return struct.calcsize(self.format)

    @cached_property
    def given(self) -> tuple[str, ...]:
        """Names of the fields taken from :class:`BatchHeader`; the others are computed."""
        return tuple(name for name in self.names if name not in _COMPUTED)

    @cached_property
    def decoded(self) -> tuple[str, ...]:
        """Names of the fields of :class:`BatchHeader`, in the order of the format."""
        return tuple("size" if name == "length" else name for name in self.names)

    @cached_property
    def values_of(self) -> Callable[[BatchHeader], tuple[Any, ...]]:
        """Getter of the values of these fields."""
        return attrgetter(*self.given)

    @cached_property
    def in_order(self) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
        """Getter of values by name, in the order of the format."""
        return itemgetter(*self.names)


_FLUSS_HEAD = ("base_offset", "length", "magic", "commit_timestamp")
_FLUSS_BODY = ("crc", "schema_id", "attributes", "last_offset_delta", "writer_id", "batch_sequence", "record_count")
LAYOUTS = (
    Layout("<qibqIhBiqii", (*_FLUSS_HEAD, *_FLUSS_BODY), 25),
    Layout("<qibqIhBiqiii", (*_FLUSS_HEAD, *_FLUSS_BODY, "statistics_length"), 25),
    Layout("<qibqiIhBiqiii", (*_FLUSS_HEAD, "leader_epoch", *_FLUSS_BODY, "statistics_length"), 29),
    Layout(
        "<qibBhIiqqiiiiqqiiIq4x",
        (
            *("base_offset", "length", "magic", "attributes", "schema_id", "crc", "last_offset_delta"),
            *("commit_timestamp", "writer_id", "batch_sequence", "writer_epoch", "record_count", "leader_epoch"),
            *("durable_end", "table_id", "bucket_id", "statistics_length", "records_position"),
            "uncounted_ms",
        ),
        20,
    ),
)
_CRC_POSITION = 16  # in magic 3
_LAST_CHANGE_TYPE = max(ChangeType)


@dataclass(slots=True, kw_only=True)  # frozen would make setting the many fields slow
class BatchHeader:
    """Header of a batch. Fields that a magic lacks have their defaults."""

    base_offset: Offset = Offset(0)
    last_offset_delta: int = 0
    commit_timestamp: int = 0
    """Milliseconds since the Unix epoch; it may be less than that of the batch before."""
    schema_id: SchemaId = SchemaId(0)
    attributes: int = 0
    writer_id: WriterId = NO_WRITER
    batch_sequence: SequenceNumber = NO_SEQUENCE
    writer_epoch: int = 0
    record_count: int = 0
    leader_epoch: int = -1
    durable_end: Offset = Offset(0)
    """The log was known to be durable up to this offset, exclusive, when the batch was written."""
    table_id: int = 0
    bucket_id: int = 0
    magic: int = MAGIC
    size: int = 0
    """Bytes of the whole batch; 0 if it was never encoded."""
    crc: int = 0
    statistics_length: int = 0
    records_position: int = 0
    """Where in a batch of magic 3 the Arrow message begins."""
    uncounted_ms: int = 0
    """How much of the commit timestamp does not count as age (magic 3); see :attr:`counted_ms`."""

    @property
    def counted_ms(self) -> int:
        """The time by which writers age: it grows by the step from timestamp to timestamp, an hour at most."""
        return self.commit_timestamp - self.uncounted_ms

    @property
    def last_offset(self) -> Offset:
        """Offset of the last record, or the one that an empty batch takes."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """Base offset of the next batch."""
        return Offset(self.last_offset + 1)

    @property
    def append_only(self) -> bool:
        """Whether every record is an append."""
        return bool(self.attributes & APPEND_ONLY)


_HEADER_NAMES = tuple(BatchHeader.__dataclass_fields__)
_header_fields = attrgetter(*_HEADER_NAMES)


@dataclass(slots=True, kw_only=True, eq=False)
class LogBatch(BatchHeader):
    """A batch: its header, and for each record a change type and a row.

    Attributes:
        change_types: uint8 ``(record_count,)``, codes of :class:`ChangeType`.
        rows: ``record_count`` rows.
        statistics: Raw statistics, empty if there are none.
    """

    change_types: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))
    rows: pa.RecordBatch = field(default_factory=lambda: pa.record_batch([], names=[]))
    statistics: bytes = b""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogBatch):
            return NotImplemented
        return (
            _header_values(self) == _header_values(other)
            and np.array_equal(self.change_types, other.change_types)
            and bool(self.rows.equals(other.rows))
            and self.statistics == other.statistics
        )


def decode_header(buffer: bytes | memoryview) -> BatchHeader:
    """Decode the header at the start of a buffer; does *not* verify the checksum.

    Raises:
        CorruptBatch: There is no header of a known magic, or it contradicts itself or a limit.
    """
    if len(buffer) <= LOG_OVERHEAD:
        raise CorruptBatch("A batch is cut short; run `kvstore check`.", bytes=len(buffer))
    magic = buffer[LOG_OVERHEAD]
    if magic >= len(LAYOUTS):
        raise CorruptBatch("The bytes here are not a batch; run `kvstore check`.", magic=magic)
    layout = LAYOUTS[magic]
    if len(buffer) < layout.size:
        raise CorruptBatch("A batch is cut short; run `kvstore check`.", bytes=len(buffer))
    header = BatchHeader(**dict(zip(layout.decoded, struct.unpack_from(layout.format, buffer), strict=True)))
    header.size += LOG_OVERHEAD
    count, delta = header.record_count, header.last_offset_delta
    if not (
        layout.size <= header.size <= BATCH_BYTES_MAX
        and 0 <= count <= RECORDS_MAX
        and delta >= max(count - 1, 0)
        and 0 <= header.base_offset <= OFFSET_MAX - delta - 1
        and 0 <= header.statistics_length <= header.size - layout.size
    ):
        raise CorruptBatch("The header of a batch contradicts itself; run `kvstore check`.", magic=magic)
    if magic == MAGIC and (header.size % ALIGNMENT or header.records_position % ALIGNMENT):
        raise CorruptBatch("A batch is not aligned; run `kvstore check`.", bytes=header.size)
    return header


def verify(header: BatchHeader, buffer: bytes | memoryview) -> None:
    """Verify the checksum of the batch at the start of a buffer.

    Raises:
        CorruptBatch: The buffer is shorter than the batch, or the checksum is wrong.
    """
    if len(buffer) < header.size:
        raise CorruptBatch("A batch is cut short; run `kvstore check`.", bytes=len(buffer), expected=header.size)
    if checksum(memoryview(buffer)[: header.size], header.magic) != header.crc:
        raise CorruptBatch("A batch fails its checksum; run `kvstore check`.", base_offset=header.base_offset)


def decode_batch(
    buffer: bytes | memoryview | pa.Buffer,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    *,
    validate: bool = True,
) -> LogBatch:
    """Decode the batch at the start of a buffer.

    Args:
        buffer: One whole batch, magic 0 to 3; bytes after it are ignored. Rows may be views of it.
        schema: Schema of the batch's schema id.
        columns: Columns to return, in this order; None for all.
        validate: Also check every offset and string of the rows. Leave it out only for bytes that this process wrote.

    Raises:
        CorruptBatch: Length, checksum or content is wrong.
    """
    view = memoryview(buffer)
    header = decode_header(view)
    verify(header, view)
    return decode_verified(header, view, schema, columns, validate=validate)


def decode_verified(
    header: BatchHeader,
    view: memoryview,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    *,
    validate: bool = False,
) -> LogBatch:
    """Like :func:`decode_batch`, for a batch whose header was decoded and whose checksum was verified."""
    size = LAYOUTS[header.magic].size
    statistics = bytes(view[size : size + header.statistics_length])
    change_types, rows = records_of(header, view, schema, columns, validate=validate)
    return LogBatch(**_header_values(header), change_types=change_types, rows=rows, statistics=statistics)


def records_of(
    header: BatchHeader,
    view: memoryview,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    *,
    validate: bool = False,
    others: bool = False,
) -> tuple[np.ndarray, pa.RecordBatch]:
    """The change types and the rows of a batch; see :func:`decode_verified`, which takes twice as long for few.

    Args:
        others: See :func:`logformat.log.arrow_message.decode`.
    """
    count = header.record_count
    position = LAYOUTS[header.magic].size + header.statistics_length
    if header.append_only:
        change_types = np.full(count, ChangeType.APPEND, np.uint8)
    else:
        if position + count > header.size:
            raise CorruptBatch("A batch is shorter than its change types.", base_offset=header.base_offset)
        change_types = np.frombuffer(view, np.uint8, count, position)
        position += count
        if change_types.max(initial=0) > _LAST_CHANGE_TYPE:
            raise CorruptBatch("A batch holds an unknown change type.", base_offset=header.base_offset)
    if not count:
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        rows = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in wanted], schema=wanted)
    else:
        start = header.records_position if header.magic == MAGIC else position
        if start < position:
            raise CorruptBatch("The rows of a batch begin inside its header.", base_offset=header.base_offset)
        rows = arrow_message.decode(view[start : header.size], schema, columns, validate=validate, others=others)
        if rows.num_rows != count:
            raise CorruptBatch("A batch does not hold the rows it counts.", base_offset=header.base_offset)
    return change_types, rows


def encode_batch(batch: LogBatch, magic: int = MAGIC, compression: Compression = None) -> bytes:
    """Encode a batch; computes size, checksum and record count, and a last offset delta given as 0.

    Args:
        batch: ``change_types`` may be empty if the batch is append-only. Fields that ``magic`` lacks are lost.
        magic: 0 to 3.
        compression: Compression of the Arrow buffers.

    Raises:
        InvalidRequest: The batch has more rows or bytes than the limits, or not one change type for each row.
    """
    return b"".join(encode_parts(batch, magic, compression))


def encode_parts(batch: LogBatch, magic: int = MAGIC, compression: Compression = None) -> list[memoryview]:
    """Like :func:`encode_batch`, in pieces that can be written without another copy."""
    if not 0 <= magic < len(LAYOUTS):
        raise InvalidRequest(f"The magic of a batch must be 0 to {MAGIC}.", magic=magic)
    layout, count = LAYOUTS[magic], batch.rows.num_rows
    if not batch.append_only and len(batch.change_types) != count:
        raise InvalidRequest("A batch needs one change type a row.", rows=count, change_types=len(batch.change_types))
    changes = b"" if batch.append_only else batch.change_types.astype(np.uint8, copy=False).tobytes()
    statistics = batch.statistics if magic > 0 else b""
    message = memoryview(arrow_message.encode(batch.rows, compression)) if count else memoryview(b"")
    position = layout.size + len(statistics) + len(changes)
    before = after = 0
    if magic == MAGIC:
        before = -position % ALIGNMENT
        after = -(position + before + len(message)) % ALIGNMENT
    size = position + before + len(message) + after
    raw = size if compression is None else batch.rows.nbytes
    if size > BATCH_BYTES_MAX or count > RECORDS_MAX or raw > RAW_BYTES_MAX // 2:
        raise BatchTooLarge(
            f"A batch of changes holds at most {RECORDS_MAX} records, {BATCH_BYTES_MAX} bytes, and {RAW_BYTES_MAX // 2}"
            " before compression, with the rows that are replaced; write fewer at once, or delete a large row first.",
            records=count,
            bytes=size,
            uncompressed=raw,
        )
    computed = {
        "length": size - LOG_OVERHEAD,
        "magic": magic,
        "record_count": count,
        "last_offset_delta": max(batch.last_offset_delta, count - 1, 0),
        "statistics_length": len(statistics),
        "records_position": position + before if count else 0,
        "crc": 0,
    }
    head = bytearray(position + before)
    head[layout.size : position] = statistics + changes
    values = dict(zip(layout.given, layout.values_of(batch), strict=True)) | computed
    struct.pack_into(layout.format, head, 0, *layout.in_order(values))
    pieces = [memoryview(head), message, memoryview(bytes(after))]
    crc = crc32c(pieces[0][:_CRC_POSITION]) if magic == MAGIC else 0
    crc = crc32c(pieces[0][layout.checksum_from :], crc)
    for piece in pieces[1:]:
        crc = crc32c(piece, crc)
    struct.pack_into("<I", head, layout.checksum_from - 4, crc)
    return pieces


def of_table(batch: bytes | memoryview, table_id: int) -> memoryview:
    """A batch of magic 3 as one of another table; all but its table id and its checksum stays.

    Args:
        batch: One whole batch, which was verified.
    """
    layout, copy = LAYOUTS[MAGIC], bytearray(batch)
    values = dict(zip(layout.names, struct.unpack_from(layout.format, copy), strict=True)) | {"table_id": table_id}
    struct.pack_into(layout.format, copy, 0, *layout.in_order(values))
    struct.pack_into("<I", copy, _CRC_POSITION, checksum(memoryview(copy), MAGIC))
    return memoryview(copy)


def checksum(batch: memoryview, magic: int) -> int:
    """The checksum that the header of a whole batch must have."""
    crc = crc32c(batch[:_CRC_POSITION]) if magic == MAGIC else 0
    return crc32c(batch[LAYOUTS[magic].checksum_from :], crc)


def _header_values(header: BatchHeader) -> dict[str, Any]:
    return dict(zip(_HEADER_NAMES, _header_fields(header), strict=True))
