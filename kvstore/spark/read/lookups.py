"""Keys that a query names by its filters: these rows are looked up, instead of reading all.

A join gives such a filter while it runs: the values that the key has on its other side.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import Filter

from kvstore.errors import KeyTooLarge
from kvstore.meta.state import TableDefinition
from kvstore.request.partition import row_indices_by_bucket
from kvstore.request.row_layout import layout_of
from kvstore.spark.read.filters import lists_of
from logformat.ids import BucketId

KEYS_MAX = 1 << 20
"""More keys are not looked up: each is in a task, and so in the memory of the driver."""


def wanted_keys(definition: TableDefinition, filters: Iterable[Filter]) -> dict[int, tuple[bytes, ...]] | None:
    """For each bucket that can have some of them, the encoded keys of all rows that can pass the filters, sorted.

    Returns:
        None if the filters do not name the keys, or too many.
    """
    layout = layout_of(definition)
    lists = lists_of(filters, definition.schema, layout.key_names)
    if not lists or prod(map(len, lists)) > KEYS_MAX:
        return None
    places = np.indices([len(values) for values in lists]).reshape(len(lists), -1)
    columns = [values.take(pa.array(row_numbers)) for values, row_numbers in zip(lists, places, strict=True)]
    rows = pa.RecordBatch.from_arrays(columns, schema=layout.key_schema)
    try:
        keys = layout.encode_keys(rows).to_arrow()
    except KeyTooLarge:
        return None
    keys_of = {}
    for bucket, of_bucket in row_indices_by_bucket(definition, rows, BucketId(0)):
        some = keys if of_bucket is None else keys.take(of_bucket)
        if len(some):
            keys_of[int(bucket)] = tuple(some.take(pc.array_sort_indices(some)).to_pylist())
    return keys_of
