"""Reading changes: record batches of the log as Arrow, each row with the columns of its change.

* Changes of a bucket come in the order of their offsets, each once.
* A read ends before a fixed offset, whatever is written meanwhile.
* Columns that a schema of that time lacks are null, and all have the names of the newest schema.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol, SupportsIndex

import numpy as np
import pyarrow as pa

from kvstore.arguments import integer, shown
from kvstore.bucket.merge.native import COMPRESSED_RECORDS_MIN
from kvstore.bucket.reads import LogReads
from kvstore.errors import InvalidRequest, OffsetOutOfRange, SchemaMismatch
from kvstore.log.segments import FoundBatch
from kvstore.meta.state import TableDefinition
from logformat.ids import BucketId, Offset, SchemaId
from logformat.log.batch import records_of
from logformat.log.change import PREIMAGE, ChangeType, words_of

Start = Literal["full", "earliest", "latest"] | int | Mapping[int, int] | dt.datetime
End = Literal["latest"] | int | Mapping[int, int] | dt.datetime

_PLACES = {
    "start": "The start of a changelog must be `full`, `earliest`, `latest`, an offset or a time.",
    "end": "The end of a changelog must be `latest`, or an offset or time (exclusive).",
}


class Selection(Protocol):
    """Chooses changes by some of their columns, before the others are decoded."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns that it looks at."""

    def of(self, rows: pa.RecordBatch, kinds: np.ndarray) -> Selected:
        """The changes to return of consecutive ones, of which both halves of an update are there.

        Args:
            rows: With these columns; no rows without any.
        """

    def rows(self, inserts: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The inserts to return of some with all columns, with some columns; no empty batch."""


class Selected(NamedTuple):
    """Some of several changes.

    Attributes:
        places: Which they are, in order.
        kinds: Their change types.
        offsets: What is added to the offset of each.
    """

    places: np.ndarray
    kinds: np.ndarray
    offsets: np.ndarray


CHANGE_FIELDS = pa.schema(
    [
        pa.field("_bucket", pa.int32(), False),
        pa.field("_log_offset", pa.int64(), False),
        pa.field("_change_type", pa.string(), False),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), False),
        pa.field("_commit_version", pa.int64(), False),
    ]
)
"""Columns before the row: position and time of a change, and the first offset of the batch it belongs to."""

_CHANGE_NAMES = frozenset(CHANGE_FIELDS.names)

READ_ROWS = 1 << 15
"""Small batches of the log are combined until they have about this many rows,"""
READ_BYTES = 64 << 20
"""or take this much memory."""

VIEWED_RECORDS_MIN = READ_ROWS // 8

_COUNTED = np.arange(1 << 18)


def changelog_schema(definition: TableDefinition, columns: Sequence[str] | None = None) -> pa.Schema:
    """Columns of a table's changelog: those of a change, then those of the row, all nullable.

    Raises:
        SchemaMismatch: ``columns`` has a name that the changelog does not have.
    """
    whole = pa.schema([*CHANGE_FIELDS, *(field.with_nullable(True) for field in definition.schema)])
    if columns is None:
        return whole
    known = set(whole.names)  # the schema makes a new list of all its names each time
    if unknown := [name for name in columns if name not in known]:
        raise SchemaMismatch("The changelog has no such column.", unknown=unknown, columns=whole.names)
    return pa.schema([whole.field(name) for name in columns])


def offset_of(name: Literal["start", "end"], bound: Start | End, log: LogReads, now: Offset) -> Offset:
    """The offset at which a changelog starts or before which it ends; ``full`` is not an offset.

    Raises:
        InvalidRequest: ``bound`` is not a position in a log.
        OffsetOutOfRange: The log does not have it.
    """
    if isinstance(bound, str):
        if bound == "latest":
            return now
        if bound == "earliest" and name == "start":
            return log.start()
    elif isinstance(bound, dt.datetime):
        return log.first_at_or_after(milliseconds(bound), now)
    elif isinstance(bound, (Mapping, SupportsIndex)):
        offset = one_offset(name, bound)
        if log.start() <= offset <= now:
            return offset
        raise OffsetOutOfRange(
            "The log does not hold this offset; offsets() returns its range.",
            offset=offset,
            log_start=log.start(),
            log_end=now,
        )
    raise InvalidRequest(_PLACES[name], **{name: shown(bound)})


def one_offset(name: str, bound: Any) -> Offset:
    """The offset of a table's only bucket, given alone or by bucket.

    Raises:
        InvalidRequest: It is neither.
    """
    if isinstance(bound, Mapping):
        if set(bound) != {0}:
            raise InvalidRequest("Give an offset for each bucket of the table.", given=shown(bound), buckets=1)
        bound = bound[0]
    return Offset(integer(name, bound))


def milliseconds(time: dt.datetime) -> int:
    """The first whole millisecond at or after a time, since the Unix epoch.

    Raises:
        InvalidRequest: The time has no time zone.
    """
    if time.tzinfo is None or time.utcoffset() is None:
        raise InvalidRequest("A time needs a time zone; give it one.", time=time)
    since = time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return -(-since // dt.timedelta(milliseconds=1))


def changes_between(
    batches: Iterable[FoundBatch],
    definition: TableDefinition,
    bucket: BucketId,
    start: Offset,
    end: Offset,
    columns: Sequence[str] | None = None,
    *,
    whole_updates: bool = False,
    validate: bool = False,
    selection: Selection | None = None,
) -> Iterator[pa.RecordBatch]:
    """Changes from ``start`` to ``end`` (exclusive), in order.

    Args:
        batches: Batches of the log that contain these offsets.
        columns: Columns to return, in this order; None for all.
        whole_updates: If ``start`` is a postimage, begin with its preimage, which is in the same batch.
        validate: Check every offset and string; needed for batches from outside the store's own log.
        selection: Return only these; it needs ``whole_updates``. The rest of the columns is decoded only of batches
            that have some.
    """
    schema = changelog_schema(definition, columns)
    if selection is not None:
        return _gathered(_selected(batches, definition, bucket, schema, start, end, selection))
    decoder = _Decoder(definition, schema.names, validate=validate)

    def changes_in(each: FoundBatch) -> tuple[pa.RecordBatch, int]:
        part = _part(each, decoder, start, end, whole_updates=whole_updates)
        base, count = each.header.base_offset, len(part.kinds)
        offsets = _offsets(base + part.first, base + part.first + count)
        about = About(bucket, offsets, part.kinds, each.header.commit_timestamp, base)
        return _arranged(part.rows, schema, count, about), part.size

    return _gathered(map(changes_in, batches))


def _gathered(batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """The rows of batches, each with its size in bytes, in larger ones, none of them empty."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch, its_bytes in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + its_bytes
        if rows >= READ_ROWS or size >= READ_BYTES:
            yield _together(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _together(waiting)


def inserts_of(
    rows: Iterable[pa.RecordBatch],
    definition: TableDefinition,
    bucket: BucketId,
    end: Offset,
    timestamp: int,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of a table as of offset ``end``, as inserts of the commit before it."""
    schema = changelog_schema(definition, columns)
    for batch in rows:
        count = batch.num_rows
        kinds = np.full(count, ChangeType.INSERT, np.uint8)
        about = About(bucket, np.full(count, end - 1), kinds, timestamp, end - 1)
        yield _arranged(batch, schema, count, about)


class _Decoder:
    """Decodes batches of a table.

    Args:
        columns: Columns to decode, of those that a batch has.
        validate: See :func:`changes_between`.
        others: See :func:`logformat.log.arrow_message.decode`.
    """

    def __init__(
        self, definition: TableDefinition, columns: Sequence[str], *, validate: bool = False, others: bool = False
    ) -> None:
        self._definition = definition
        self._columns = columns
        self._how = {"validate": validate, "others": others}
        self._wanted: dict[SchemaId, tuple[pa.Schema, list[str] | None]] = {}

    def decode(self, logged: FoundBatch) -> tuple[np.ndarray, pa.RecordBatch]:
        """The change types of a batch, and its rows: all columns, as they are stored, or those that are wanted."""
        header = logged.header
        written, wanted = self._wanted.get(header.schema_id) or self._of(header.schema_id)
        # A view of a file keeps it open; small data is copied, so that batches of many segments can be combined.
        data = logged.data if header.record_count >= VIEWED_RECORDS_MIN else memoryview(bytes(logged.data))
        return records_of(header, data, written, wanted, **self._how)

    def _of(self, schema_id: SchemaId) -> tuple[pa.Schema, list[str] | None]:
        written = self._definition.schema_of(schema_id)
        known = set(written.names)  # the schema makes a new list of all its names each time
        names = [name for name in self._columns if name in known]
        self._wanted[schema_id] = written, None if len(names) == len(known) else names
        return self._wanted[schema_id]


class _Part(NamedTuple):
    """Consecutive changes of one batch.

    Attributes:
        first: How many of the batch come before them.
        rows: With the columns that a selection looks at, or all.
    """

    found: FoundBatch
    first: int
    kinds: np.ndarray
    rows: pa.RecordBatch

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        stored = len(self.found.data)
        # Fewer records are not compressed: their columns are in what is stored, and to count them takes long.
        return stored if self.found.header.record_count < COMPRESSED_RECORDS_MIN else stored + self.rows.nbytes


class _Reading(NamedTuple):
    """What is read of the batches of a bucket.

    Attributes:
        schema: Columns of the changes that are returned.
        looked_at, returned: Columns of the table that the selection looks at, and those that are returned.
    """

    definition: TableDefinition
    bucket: BucketId
    schema: pa.Schema
    selection: Selection
    looked_at: pa.Schema
    returned: pa.Schema


def _selected(
    batches: Iterable[FoundBatch],
    definition: TableDefinition,
    bucket: BucketId,
    schema: pa.Schema,
    start: Offset,
    end: Offset,
    selection: Selection,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    looked_at = pa.schema([definition.schema.field(name).with_nullable(True) for name in selection.columns])
    returned = pa.schema([field for field in schema if field.name not in _CHANGE_NAMES])
    reading = _Reading(definition, bucket, schema, selection, looked_at, returned)
    decoder = _Decoder(definition, looked_at.names, others=True)
    parts: list[_Part] = []
    records = size = 0
    for each in batches:
        part = _part(each, decoder, start, end, whole_updates=True)
        parts.append(part)
        records, size = records + len(part.kinds), size + part.size
        if records >= READ_ROWS or size >= READ_BYTES:
            yield from _chosen(parts, reading)
            parts, records, size = [], 0, 0
    if parts:
        yield from _chosen(parts, reading)


def _part(logged: FoundBatch, decoder: _Decoder, start: Offset, end: Offset, *, whole_updates: bool) -> _Part:
    """The changes of a batch in a range of offsets; see :func:`changes_between`."""
    header = logged.header
    kinds, rows = decoder.decode(logged)
    first, last = max(start - header.base_offset, 0), min(end - header.base_offset, header.record_count)
    if whole_updates and 0 < first < last and kinds[first - 1] == PREIMAGE:
        first -= 1
    if (first, last) != (0, header.record_count):
        kinds = kinds[first : max(first, last)]
        rows = rows.slice(first, len(kinds))
    return _Part(logged, first, kinds, rows)


def _chosen(parts: Sequence[_Part], reading: _Reading) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The selected changes of some parts, in one batch with its size, if there are any."""
    looked_at = _batch_of(_joined(parts, reading.looked_at))
    places, kinds, moved = reading.selection.of(looked_at, np.concatenate([part.kinds for part in parts]))
    if not len(places):
        return
    ends = np.cumsum([len(part.kinds) for part in parts])
    numbers = np.searchsorted(ends, places, side="right")  # of the part of each
    hit, group = np.unique(numbers, return_inverse=True)
    hits = [parts[number] for number in hit.tolist()]
    starts = np.append(0, ends)[hit]
    within = places - starts[group]
    about = [(part.found.header.commit_timestamp, part.found.header.base_offset, part.first) for part in hits]
    timestamps, bases, firsts = np.array(about, np.int64).T[:, group]
    before = np.append(0, np.cumsum(ends[hit] - starts))[group]  # rows of hits before the part of each
    # `take` of a table, unlike that of a batch, does not join the parts first.
    rows = _joined(_completed(hits, reading), reading.returned).take(pa.array(before + within))
    changes = _batch_of(rows)
    columns = About(reading.bucket, bases + firsts + within + moved, kinds, timestamps, bases)
    yield _arranged(changes, reading.schema, len(kinds), columns), changes.nbytes


def _completed(parts: Sequence[_Part], reading: _Reading) -> Iterator[_Part]:
    """Parts with all columns that are returned; those that were not decoded are decoded now."""
    looked_at = set(reading.looked_at.names)
    missing = [name for name in reading.returned.names if name not in looked_at]
    rest = _Decoder(reading.definition, missing)
    for part in parts:
        written = reading.definition.schema_of(part.found.header.schema_id)
        if missing and part.rows.num_columns < len(written):
            _, more = rest.decode(part.found)
            pieces = part.rows, more.slice(part.first, len(part.kinds))
            columns = {name: piece.column(name) for piece in pieces for name in piece.schema.names}
            schema = pa.schema([field for field in written if field.name in columns])
            rows = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
            yield part._replace(rows=rows)
        else:
            yield part


def _joined(parts: Iterable[_Part], schema: pa.Schema) -> pa.Table:
    """The rows of parts with the columns of a schema; null where they are older than a column."""

    def alike(part: _Part) -> tuple[SchemaId, int]:
        return part.found.header.schema_id, part.rows.num_columns

    tables = []
    for _, some in groupby(parts, alike):
        rows = pa.Table.from_batches([part.rows for part in some])
        there = dict(zip(rows.column_names, rows.columns, strict=True))
        columns = [
            there[field.name] if field.name in there else pa.nulls(rows.num_rows, field.type) for field in schema
        ]
        tables.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(tables)


def _batch_of(rows: pa.Table) -> pa.RecordBatch:
    """The same rows in one batch, which has none without columns."""
    columns = [each.chunk(0) if each.num_chunks == 1 else each.combine_chunks() for each in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


@dataclass(frozen=True, slots=True)
class About:
    """Columns of changes other than their rows.

    Attributes:
        timestamp: Commit timestamp, ms; one for all, or for each.
        version: The first offset of the batch; the same.
    """

    bucket: BucketId
    offsets: np.ndarray
    change_types: np.ndarray
    timestamp: int | np.ndarray
    version: int | np.ndarray

    def column(self, name: str) -> pa.Array:
        """The column of this name of ``CHANGE_FIELDS``."""
        if name == "_log_offset":
            return pa.array(self.offsets, pa.int64())
        if name == "_change_type":
            return words_of(self.change_types)
        same = {"_bucket": self.bucket, "_commit_timestamp": self.timestamp * 1000, "_commit_version": self.version}
        kind = CHANGE_FIELDS.field(name).type
        values, buffer = _memory(len(self.offsets), kind.bit_width // 8)
        values[:] = same[name]
        return pa.Array.from_buffers(kind, len(self.offsets), [None, buffer])


def _memory(count: int, width: int) -> tuple[np.ndarray, pa.Buffer]:
    """Memory for integers: Arrow reuses freed memory, numpy would have the system clear new pages each time."""
    buffer = pa.allocate_buffer(count * width)
    return np.frombuffer(buffer, f"i{width}"), buffer


def _offsets(first: int, end: int) -> np.ndarray:
    if end - first > len(_COUNTED):
        return np.arange(first, end)
    offsets, _ = _memory(end - first, 8)
    return np.add(_COUNTED[: end - first], first, out=offsets)


def _arranged(rows: pa.RecordBatch, schema: pa.Schema, count: int, about: About | None = None) -> pa.RecordBatch:
    """The columns of a schema; null where the rows are older than a column."""
    there = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns = []
    for field in schema:
        if about is not None and field.name in _CHANGE_NAMES:
            columns.append(about.column(field.name))
        elif field.name in there:
            columns.append(there[field.name])
        else:
            columns.append(pa.nulls(count, field.type))
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
