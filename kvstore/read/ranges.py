"""Ranges of a scan: which keys it reads, in which direction, and the order over several buckets.

A range is what a caller gives, or what conditions on the key's columns leave of it.

Encoded keys have the order of their values, and the code of a key's first columns is the beginning of every key with
these values. So each end of a range is one encoded key, or the beginning of one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest, SchemaMismatch
from kvstore.indexing.conditions import Condition
from kvstore.indexing.find import SOUGHT_MAX
from kvstore.meta.state import TableDefinition
from kvstore.read.scan import KeyRange, common
from kvstore.request.partition import buckets_of_rows
from kvstore.request.row_layout import TableLayout, layout_of
from logformat import binary_column
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId
from logformat.rows import intake
from logformat.rows.keys import KEY_BYTES_MAX, ROW
from logformat.rows.schema import is_variable

ALL_KEYS = KeyRange()
_END_BYTES = 1
"""A text in a key ends with one byte, which the beginning of a text does not have."""


@dataclass(frozen=True, slots=True)
class Span:
    """The keys that a scan reads.

    Attributes:
        keys: Their range.
        reverse: Whether they are read from the last to the first.
        bucket: The only bucket that can have such keys, if it is known.
    """

    keys: KeyRange = ALL_KEYS
    reverse: bool = False
    bucket: BucketId | None = None


def span_of(definition: TableDefinition, start: Any, stop: Any, prefix: Any, reverse: Any) -> Span | None:
    """The span of the arguments of :meth:`kvstore.Table.scan`; None if none of them is given.

    Raises:
        SchemaMismatch: A key is not the beginning of one of the table, or a value does not fit.
        InvalidRequest: ``reverse`` is not True or False.
    """
    if start is None and stop is None and prefix is None and reverse is False:
        return None
    if not isinstance(reverse, bool):
        raise InvalidRequest("`reverse` is True or False.", reverse=shown(reverse))
    layout = layout_of(definition)
    first = None if start is None else _end_code(layout, "start", start)
    end = None if stop is None else _end_code(layout, "stop", stop)
    # No key of the table is longer, and none is the beginning of another: a cut leaves as many keys before it.
    low = ROW if first is None else first[:KEY_BYTES_MAX]
    high = None if end is None else max(low, end[:KEY_BYTES_MAX])
    span = Span(KeyRange(low, high), reverse)
    return span if prefix is None else _within_prefix(span, definition, prefix)


def _end_code(layout: TableLayout, argument: str, given: Any) -> bytes:
    code = layout.single.encode_key(given)  # of a whole key
    return _code(layout, prefix_row(given, layout.key_schema, argument)) if code is None else code


def _within_prefix(span: Span, definition: TableDefinition, prefix: Any) -> Span:
    layout = layout_of(definition)
    exact, beginning = _divided(prefix, layout)
    code = (ROW if exact is None else _code(layout, exact)) + beginning
    nothing = KeyRange(code[:KEY_BYTES_MAX], code[:KEY_BYTES_MAX])
    within = KeyRange(code, after(code)) if len(code) <= KEY_BYTES_MAX else nothing
    bucket = None
    if exact is not None and definition.bucket_key and set(definition.bucket_key) <= set(exact.schema.names):
        bucket = BucketId(int(buckets_of_rows(definition, exact)[0]))
    return replace(span, keys=common(span.keys, within) or nothing, bucket=bucket)


def _divided(prefix: Any, layout: TableLayout) -> tuple[pa.RecordBatch | None, bytes]:
    """The columns of a prefix that are whole, and the code of the beginning of a text or of bytes after them."""
    values = _by_name(prefix, layout.key_schema)
    last = layout.key_schema.field(len(values) - 1)
    is_text = pa.types.is_string(last.type)
    if not (is_text or pa.types.is_binary(last.type) or pa.types.is_fixed_size_binary(last.type)):
        return prefix_row(values, layout.key_schema), b""
    given = values.pop(last.name)
    beginning = given
    if is_text and isinstance(given, str):
        with suppress(UnicodeEncodeError):
            beginning = given.encode()
    if not isinstance(beginning, bytes):
        raise SchemaMismatch(
            "A prefix of this column is text or bytes, as the column is.",
            column=last.name,
            expected=last.type,
            given=shown(given),
        )
    if is_variable(last.type):
        beginning = layout.keys.encode_prefix([pa.array([beginning], pa.binary())])[0][len(ROW) : -_END_BYTES]
    return (prefix_row(values, layout.key_schema) if values else None), beginning


@dataclass(frozen=True, slots=True)
class Sought:
    """Keys of all rows that can meet some conditions.

    Attributes:
        ranges: Where they are, disjoint and in order.
        keys: They, sorted, if they are known one by one.
        columns: How many columns of the key the conditions are about.
    """

    ranges: list[KeyRange]
    keys: BinaryColumn | None
    columns: int


def sought(definition: TableDefinition, conditions: Sequence[Condition]) -> Sought | None:
    """The keys that conditions leave; None if these do not begin with the key's first column."""
    by_column, layout = {each.column: each for each in conditions}, layout_of(definition)
    used, codes = 0, [ROW]
    condition = None
    for name in layout.key_names:
        condition = by_column.get(name)
        if condition is None or condition.values is None or len(codes) * len(condition.values) > SOUGHT_MAX:
            break
        parts = _codes(layout, condition.values)
        codes = [code + part for code in codes for part in parts]
        used += 1
    codes = [code for code in codes if len(code) <= KEY_BYTES_MAX]  # there is no longer key
    if used == len(layout.key_names):
        return Sought([KeyRange(code, code + b"\0") for code in codes], BinaryColumn.from_list(codes), used)
    ranges = []
    if condition is not None and condition.values is None:
        used += 1
        low, high = (
            b"" if end is None else _codes(layout, pa.array([end]))[0] for end in (condition.low, condition.high)
        )
        for code in codes:
            # Cut as the ends of a span.
            start, stop = (code + low)[:KEY_BYTES_MAX], after((code + high)[:KEY_BYTES_MAX])
            if stop is None or start < stop:
                ranges.append(KeyRange(start, stop))
    elif used:
        ranges = [KeyRange(code, after(code)) for code in codes]
    return Sought(ranges, None, used) if used else None


def _codes(layout: TableLayout, values: pa.Array) -> list[bytes]:
    """Codes of values of a key's column, sorted, each once; no key has a null."""
    codes = layout.keys.encode_prefix([values.drop_null()]).to_list()
    return sorted({code[len(ROW) :] for code in codes})


def prefix_row(prefix: Any, key_schema: pa.Schema, argument: str = "prefix") -> pa.RecordBatch:
    """Values of the first columns of a key, as one row.

    Raises:
        SchemaMismatch: The values are not a prefix of a key, or do not fit.
    """
    values = _by_name(prefix, key_schema, argument)
    return intake.one_batch(values, pa.schema([key_schema.field(nth) for nth in range(len(values))]))


def check_not_whole(prefix: pa.RecordBatch, key_schema: pa.Schema) -> None:
    """Refuse a whole key whose last column may be meant as the beginning of a text.

    Raises:
        InvalidRequest: It is one.
    """
    if prefix.num_columns == len(key_schema) and is_variable(key_schema.field(len(key_schema) - 1).type):
        raise InvalidRequest(
            "This is a whole key, which get() reads; keys that begin with it are read by scan(prefix=…).",
            **{
                column: shown(values[0].as_py())
                for column, values in zip(key_schema.names, prefix.columns, strict=True)
            },
        )


def _by_name(prefix: Any, key_schema: pa.Schema, argument: str = "prefix") -> dict[str, Any]:
    names = key_schema.names
    if not isinstance(prefix, Mapping):
        values = list(prefix) if isinstance(prefix, (tuple, list)) else [prefix]
        prefix = dict(zip(names, values, strict=False)) if len(values) <= len(names) else dict(enumerate(values))
    if not prefix or set(prefix) != set(names[: len(prefix)]):
        raise SchemaMismatch(
            f"`{argument}` needs values for the first columns of the key.", given=list(prefix), key=names
        )
    return {name: prefix[name] for name in names[: len(prefix)]}


def _code(layout: TableLayout, values: pa.RecordBatch) -> bytes:
    return layout.keys.encode_prefix(values.columns)[0]


def after(prefix: bytes) -> bytes | None:
    """The smallest byte string after all that begin with ``prefix``; None if there is none."""
    shorter = prefix.rstrip(b"\xff")
    return shorter[:-1] + bytes([shorter[-1] + 1]) if shorter else None


def merged(
    buckets: Sequence[Iterator[pa.RecordBatch]], definition: TableDefinition, *, reverse: bool
) -> Iterator[pa.RecordBatch]:
    """Rows of several buckets in the order of their keys; of each bucket, one batch is held.

    Args:
        buckets: Rows of each, with the key's columns, in order.
    """
    heads: dict[int, tuple[pa.RecordBatch, BinaryColumn]] = {}
    waiting = list(range(len(buckets)))
    while True:
        for bucket in waiting:
            heads.pop(bucket, None)
            rows = next((batch for batch in buckets[bucket] if batch.num_rows), None)
            if rows is not None:
                heads[bucket] = rows, layout_of(definition).encode_keys(rows)
        if not heads:
            return
        # Up to here, no bucket has other rows than those that it shows.
        nearest = (max if reverse else min)(keys[len(keys) - 1] for _, keys in heads.values())
        taken, waiting = [], []
        for bucket, (rows, keys) in heads.items():
            cut = _cut(keys, nearest, reverse=reverse)
            taken.append((rows.slice(0, cut), keys.slice(0, cut)))
            heads[bucket] = rows.slice(cut), keys.slice(cut, len(keys))
            if cut == len(keys):
                waiting.append(bucket)
        yield _in_order(taken, reverse=reverse)


def _cut(keys: BinaryColumn, nearest: bytes, *, reverse: bool) -> int:
    """Number of keys up to one of them, in the order of a scan."""
    if reverse:
        return bisect_left(range(len(keys)), True, key=lambda number: keys[number] < nearest)
    return bisect_left(range(len(keys)), True, key=lambda number: keys[number] > nearest)


def _in_order(parts: list[tuple[pa.RecordBatch, BinaryColumn]], *, reverse: bool) -> pa.RecordBatch:
    parts = [part for part in parts if part[0].num_rows]
    if len(parts) == 1:
        return parts[0][0]
    keys = binary_column.concatenate([keys for _, keys in parts]).to_arrow()
    order = pc.array_sort_indices(keys, order="descending" if reverse else "ascending")
    return pa.concat_batches([rows for rows, _ in parts]).take(order)
