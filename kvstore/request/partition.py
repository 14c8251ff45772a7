"""Partitioning of a table's rows by bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import pyarrow as pa

from kvstore.arguments import integer, shown
from kvstore.errors import InvalidRequest
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from logformat.ids import BucketId
from logformat.rows import bucketing
from logformat.rows.changes import Changes
from logformat.rows.keys import ROW, KeyCodec


def buckets_of_rows(definition: TableDefinition, rows: pa.RecordBatch) -> np.ndarray:
    """The bucket of each row, int64 ``(n,)``.

    Args:
        rows: Rows with the columns of the bucket key; the table has one.
    """
    if definition.buckets == 1:
        return np.zeros(rows.num_rows, np.int64)
    assert definition.bucket_key is not None
    keys = KeyCodec([]).encode_prefix([rows.column(name) for name in definition.bucket_key])
    return bucketing.buckets_of(keys, definition.buckets, len(ROW))


def bucket_finder(definition: TableDefinition) -> Callable[[Any, bytes], int]:
    """The function that gives the bucket of a key and its code, as the codec of single rows has encoded it."""
    from kvstore.kernel import library

    buckets, native, start = definition.buckets, library.bucket_finder(), len(ROW)
    if definition.bucket_key != definition.primary_key:
        codec, names = layout_of(definition).single, definition.bucket_key or ()
        return lambda key, _: bucketing.bucket_of(codec.encode_columns(key, names), buckets)
    if native is None:
        return lambda _, code: bucketing.bucket_of(code[start:], buckets)
    return lambda _, code: native(code, len(code), start, buckets)


def bucket_of(definition: TableDefinition, values: Mapping[str, pa.Scalar]) -> int | None:
    """The bucket of all rows with these values; None if several buckets may have such rows."""
    if definition.bucket_key is None or not set(definition.bucket_key) <= values.keys():
        return None
    columns = {name: pa.array([values[name]]) for name in definition.bucket_key}
    return int(buckets_of_rows(definition, pa.RecordBatch.from_pydict(columns))[0])


def spread(definition: TableDefinition, changes: Changes, other: BucketId) -> Iterator[tuple[BucketId, Changes]]:
    """Changes by bucket; within a bucket they keep their order.

    Args:
        other: The bucket of all changes if the table has no bucket key.
    """
    for bucket, places in row_indices_by_bucket(definition, changes.rows, other):
        yield bucket, changes if places is None else changes.take(places)


def row_indices_by_bucket(
    definition: TableDefinition, rows: pa.RecordBatch, other: BucketId
) -> Iterator[tuple[BucketId, pa.Int64Array | None]]:
    """The rows of each bucket that has any, by index and in order; None for all rows.

    Args:
        other: The bucket of all rows if the table has no bucket key.
    """
    if definition.buckets == 1 or definition.bucket_key is None:
        yield BucketId(0) if definition.buckets == 1 else other, None
        return
    buckets = buckets_of_rows(definition, rows)
    order = np.argsort(buckets, kind="stable")
    cuts = np.flatnonzero(np.diff(buckets[order])) + 1
    for places in np.split(order, cuts):
        if len(places):
            yield BucketId(int(buckets[places[0]])), pa.array(places)


def bound_in(name: str, bound: Any, bucket: BucketId, buckets: Sequence[BucketId]) -> Any:
    """The start or end of a changelog in one bucket: with offsets by bucket, this bucket's offset.

    Args:
        name: Name of the argument.
        buckets: All buckets that are read.

    Raises:
        InvalidRequest: There is not exactly one offset for each bucket.
    """
    if isinstance(bound, Mapping):
        if set(bound) != set(buckets):
            raise InvalidRequest("Give an offset for each bucket.", buckets=list(buckets), **{name: shown(bound)})
        return integer(name, bound[bucket])
    if isinstance(bound, SupportsIndex) and not isinstance(bound, bool) and len(buckets) > 1:
        raise InvalidRequest("Each of several buckets has its own offsets; give one for each.", **{name: bound})
    return bound
