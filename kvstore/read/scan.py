"""Reading rows in key order, in the current state or as of an offset.

* A scan reads one view: rows that are written meanwhile are not in it, and none is there twice.
* Ranges are of encoded keys, whose order is that of the rows.
* How much a range has is estimated from its first and last key, as if keys were uniform; rows are never chosen so.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.bucket.reads import LogReads
from kvstore.errors import InvalidRequest, OffsetOutOfRange, SchemaMismatch
from kvstore.index.found_rows import FoundRows
from kvstore.index.index import View
from kvstore.indexing.filters import understood
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import changes_between, milliseconds, one_offset
from kvstore.read.time_travel import FirstChanges, check_undoable, first_changes
from kvstore.request.native_rows import rows_found
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId, Offset
from logformat.rows import intake
from logformat.rows.keys import ROW
from logformat.rows.python_values import MISFITS

SCAN_ROWS = 1 << 15
"""Number of rows in a batch of a scan."""
_WORD = 8
_PLACE = "_place"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Encoded keys from ``start`` to ``stop`` (exclusive; None for no end)."""

    start: bytes = ROW
    stop: bytes | None = None


def split_keys(view: View, ranges: Sequence[KeyRange], parts: int) -> list[tuple[KeyRange, ...]]:
    """Divide key ranges into at most ``parts`` parts, evenly between first and last key, assuming uniform keys.

    Args:
        ranges: Disjoint and in order.
    """
    bounds = view.bounds()
    if bounds is None or parts < 2 or not ranges:
        return [tuple(ranges)]
    low, high = max(bounds[0], ranges[0].start), bounds[1]
    if ranges[-1].stop is not None:
        high = min(high, ranges[-1].stop)
    inner = evenly_between(low, high, parts) if low < high else []
    cut = [KeyRange(start, stop) for start, stop in zip([ROW, *inner], [*inner, None], strict=True)]
    divided = [tuple(filter(None, (common(each, part) for each in ranges))) for part in cut]
    return [part for part in divided if part]


def bytes_within(view: View, ranges: Iterable[KeyRange]) -> int:
    """Approximate bytes of the rows in some ranges, assuming uniform keys."""
    bounds = view.bounds()
    if bounds is None:
        return 0
    first, last = bounds
    shared = _shared(first, last)
    low, high = _number(first, shared), _number(last, shared)
    share = 0
    for each in ranges:
        start = low if each.start <= first else _number(each.start, shared)
        stop = high if each.stop is None or each.stop > last else _number(each.stop, shared)
        share += max(0, min(stop, high) - max(start, low))
    return view.leaf_bytes() * share // (high - low) if high > low else view.leaf_bytes()


def evenly_between(first: bytes, last: bytes, parts: int) -> list[bytes]:
    """Sorted byte strings that divide the space between two keys into parts; fewer if the keys are close."""
    shared = _shared(first, last)
    low, high = _number(first, shared), _number(last, shared)
    cuts = {low + (high - low) * part // parts for part in range(1, parts)} - {low}
    return [first[:shared] + cut.to_bytes(_WORD, "big") for cut in sorted(cuts)]


def _shared(first: bytes, last: bytes) -> int:
    """Length of the common prefix of two keys."""
    return next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))


def _number(key: bytes, shared: int) -> int:
    """The word of a key after its first ``shared`` bytes, as a number."""
    return int.from_bytes(key[shared : shared + _WORD].ljust(_WORD, b"\0"), "big")


def common(one: KeyRange, other: KeyRange) -> KeyRange | None:
    """Intersection of two ranges; None if it is empty."""
    start = max(one.start, other.start)
    stops = [each.stop for each in (one, other) if each.stop is not None]
    stop = min(stops, default=None)
    return KeyRange(start, stop) if stop is None or start < stop else None


def scan_schema(definition: TableDefinition, columns: Sequence[str] | None = None) -> pa.Schema:
    """Columns of a scan.

    Raises:
        SchemaMismatch: ``columns`` has a name that the table does not have.
    """
    schema = definition.schema
    if columns is None:
        return schema
    known = set(schema.names)
    if unknown := [name for name in columns if name not in known]:
        raise SchemaMismatch("The table has no such column.", unknown=unknown, columns=schema.names)
    return pa.schema([schema.field(name) for name in columns])


def rows_now(
    view: View,
    definition: TableDefinition,
    columns: Sequence[str] | None = None,
    keys: KeyRange | None = None,
    *,
    reverse: bool = False,
    batch_rows: int = SCAN_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Rows of a view, in key order, or in the reverse of it.

    Args:
        batch_rows: Largest number of rows of a batch.
    """
    layout = layout_of(definition)
    within = keys or KeyRange()
    for chunk in view.found(batch_rows, within.start, within.stop, reverse=reverse):
        rows = rows_found(layout, chunk, columns)
        yield backwards(rows) if reverse else rows


def backwards(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows from the last to the first."""
    return rows.take(pa.array(np.arange(rows.num_rows - 1, -1, -1)))


def rows_as_of(
    view: View,
    log: LogReads,
    definition: TableDefinition,
    offset: Offset,
    columns: Sequence[str] | None = None,
    keys: Sequence[KeyRange] = (KeyRange(),),
    *,
    reverse: bool = False,
    batch_rows: int = SCAN_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Rows as of ``offset``, in key order: the current rows with all later changes undone.

    Args:
        keys: Ranges of keys, disjoint and in order.
        reverse: Whether to read them from the last to the first.
        batch_rows: Largest number of current rows of a batch.

    Raises:
        OffsetOutOfRange: The log no longer has the changes since then, or the offset is in the future.
    """
    names = list(columns) if columns is not None else definition.schema.names
    undone = _undone(view, log, definition, offset, names)
    ordered = keys[::-1] if reverse else keys
    if undone is None:
        return chain.from_iterable(
            rows_now(view, definition, columns, within, reverse=reverse, batch_rows=batch_rows) for within in ordered
        )
    return chain.from_iterable(
        _rows_undone(view, definition, undone, names, within, batch_rows, reverse=reverse) for within in ordered
    )


def _undone(
    view: View,
    log: LogReads,
    definition: TableDefinition,
    offset: Offset,
    names: Sequence[str],
    of_keys: BinaryColumn | None = None,
) -> FirstChanges | None:
    """The first change since an offset of each key, or of some; None if there is none, since it is the view's end.

    Raises:
        OffsetOutOfRange: See :func:`rows_as_of`.
    """
    now = view.state().applied_offset
    if not 0 <= offset <= now:
        raise OffsetOutOfRange("`as_of` must be an offset from 0 to the log's end.", as_of=offset, log_end=now)
    if offset == now:
        return None
    check_undoable(definition)
    layout = layout_of(definition)
    needed = ["_change_type", *dict.fromkeys([*layout.key_names, *names])]
    changes = changes_between(
        log.batches(offset, now), definition, BucketId(0), offset, now, needed, whole_updates=True
    )
    if of_keys is not None:
        wanted = of_keys.to_arrow()
        changes = (rows.filter(pc.is_in(layout.encode_keys(rows).to_arrow(), wanted)) for rows in changes)
    return first_changes(changes, definition, names)


def rows_of_keys(
    view: View,
    log: LogReads,
    definition: TableDefinition,
    offset: Offset,
    columns: Sequence[str],
    keys: BinaryColumn,
    *,
    reverse: bool = False,
    batch_rows: int = SCAN_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Those of :func:`rows_as_of` that have some keys, in key order; each is looked up.

    Args:
        keys: Encoded, sorted, each once.
        reverse: Whether to read them from the last to the first.
        batch_rows: Number of keys that are looked up at a time.

    Raises:
        OffsetOutOfRange: See :func:`rows_as_of`.
    """
    layout, undone = layout_of(definition), _undone(view, log, definition, offset, columns, keys)
    starts = range(0, len(keys), batch_rows)
    for start in reversed(starts) if reverse else starts:
        some = keys.slice(start, min(start + batch_rows, len(keys)))
        there, values = view.find(some)
        keys_there = some.take(np.flatnonzero(there))
        rows = intake.empty(layout.columns(columns))
        if len(keys_there):
            rows = rows_found(layout, FoundRows.of(keys_there, values), columns)
        if undone is not None:
            rows = _replaced(rows, keys_there, undone.between(some[0], some[-1] + b"\0"))
        if rows.num_rows:
            yield backwards(rows) if reverse else rows


def keys_within(keys: BinaryColumn, within: KeyRange) -> BinaryColumn:
    """Those of some keys, which are sorted, that are in a range."""
    low = bisect_left(keys, within.start)
    return keys.slice(low, len(keys) if within.stop is None else bisect_left(keys, within.stop, low))


def offset_as_of(bound: int | Mapping[int, int] | dt.datetime, log: LogReads, now: Offset) -> Offset:
    """The offset of an earlier state: an offset as it is; for a time, of the first commit at or after it.

    Raises:
        InvalidRequest: It is neither.
        OffsetOutOfRange: The log does not reach back to the time.
    """
    if not isinstance(bound, dt.datetime):
        return one_offset("as_of", bound)
    offset = log.first_at_or_after(milliseconds(bound), now)
    if 0 < offset < now and offset == log.start():
        # The removed part of the log may have commits of that time or later.
        raise OffsetOutOfRange("The log does not reach back to this time.", as_of=bound, log_start=offset)
    return offset


class RowFilter:
    """A filter of the rows of a table.

    Args:
        expression: What a caller gave.
        schema: Columns of the table.

    Attributes:
        expression: The argument.
        understood: What is known of it.

    Raises:
        InvalidRequest: See :func:`check_filter`.
    """

    def __init__(self, expression: Any, schema: pa.Schema) -> None:
        _check_expression(expression)
        self.expression: pc.Expression = expression
        self.understood = understood(expression, schema)
        if self.understood.comparisons is None:
            check_filter(expression, schema)

    def passing(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See :func:`rows_where`."""
        if self.understood.comparisons is None:
            return rows_where(rows, self.expression)
        return map(self.understood.matching, rows)

    def columns(self, schema: pa.Schema) -> list[str]:
        """The columns of a schema that it uses: those without which it can't be applied."""
        if self.understood.comparisons is not None:
            used = {each.column for each in self.understood.comparisons}
            return [name for name in schema.names if name in used]
        return [field.name for field in schema if not _fits(self.expression, schema, without=field.name)]

    def places(self, rows: pa.RecordBatch, count: int) -> np.ndarray:
        """The places of the rows for which it is true, int64, in order.

        Args:
            rows: With the columns that it names.
            count: How many there are; a batch without columns does not say.

        Raises:
            InvalidRequest: The expression fails for a row.
        """
        if self.understood.comparisons is not None:
            return pc.indices_nonzero(self.understood.true_for(rows)).to_numpy().astype(np.int64)
        numbered = pa.record_batch([*rows.columns, np.arange(count)], names=[*rows.schema.names, _PLACE])
        return matching(numbered, self.expression).column(_PLACE).to_numpy()


def rows_where(rows: Iterable[pa.RecordBatch], filter: pc.Expression) -> Iterator[pa.RecordBatch]:
    """Rows for which an expression is true.

    Raises:
        InvalidRequest: The expression fails for a row.
    """
    for batch in rows:
        yield matching(batch, filter)


def _fits(filter: pc.Expression, schema: pa.Schema, *, without: str) -> bool:
    try:
        matching(intake.empty(schema.remove(schema.get_field_index(without))), filter)
    except InvalidRequest:
        return False
    return True


def check_filter(filter: Any, schema: pa.Schema) -> None:
    """Check that a filter can be applied to rows of a schema.

    Raises:
        InvalidRequest: It is not an expression, not a condition, or does not fit the columns.
    """
    _check_expression(filter)
    matching(intake.empty(schema), filter)


def _check_expression(filter: Any) -> None:
    if not isinstance(filter, pc.Expression):
        raise InvalidRequest(
            "A filter must be a pyarrow.compute.Expression, such as pc.field('n') > 1.", given=type(filter).__name__
        )


def first_rows(rows: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """The first ``limit`` rows."""
    for batch in rows:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def matching(rows: pa.RecordBatch, filter: pc.Expression) -> pa.RecordBatch:
    """The rows for which a filter is true.

    Raises:
        InvalidRequest: It can't be evaluated on them.
    """
    from pyarrow import acero  # it imports pandas where there is one, which takes long

    try:
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([rows])))
        passing = acero.Declaration("filter", acero.FilterNodeOptions(filter), [source])
        # RecordBatch.filter() would use threads, which for one batch costs as much again.
        found = passing.to_table(use_threads=False)
    except MISFITS as error:
        raise InvalidRequest(
            "The filter can't be used on these rows.", filter=filter, reason=str(error).partition("\n")[0]
        ) from error
    return found.combine_chunks().to_batches()[0] if found.num_rows else rows.slice(0, 0)


def _rows_undone(
    view: View,
    definition: TableDefinition,
    undone: FirstChanges,
    names: list[str],
    within: KeyRange,
    batch_rows: int,
    *,
    reverse: bool,
) -> Iterator[pa.RecordBatch]:
    layout, left = layout_of(definition), undone.between(within.start, within.stop)
    for chunk in view.found(batch_rows, within.start, within.stop, reverse=reverse):
        rows, keys = rows_found(layout, chunk, names), chunk.keys()
        if reverse:
            some, left = left.between(keys[0], None), left.between(ROW, keys[0])
            yield backwards(_replaced(rows, keys, some))
        else:
            end = keys[-1] + b"\0"
            some, left = left.between(ROW, end), left.between(end, None)
            yield _replaced(rows, keys, some)
    if len(left.keys):
        rows = _replaced(left.rows.slice(0, 0), left.keys.slice(0, 0), left)
        yield backwards(rows) if reverse else rows


def _replaced(rows: pa.RecordBatch, keys: BinaryColumn, undone: FirstChanges) -> pa.RecordBatch:
    """Rows in which those of some undone changes are replaced by their earlier state."""
    if not len(undone.keys):
        return rows
    changed = undone.keys.to_arrow()
    kept = pc.invert(pc.is_in(keys.to_arrow(), changed))
    existed = pa.array(undone.existed)
    back = undone.rows.filter(existed)
    order = pc.array_sort_indices(pa.concat_arrays([keys.to_arrow().filter(kept), changed.filter(existed)]))
    return pa.concat_batches([rows.filter(kept), back]).take(order)
