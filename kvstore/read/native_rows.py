"""Rows of a lookup, decoded by the native kernel where it can."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kvstore.request.row_layout import TableLayout
from logformat.binary_column import BinaryColumn
from logformat.ids import SchemaId

if TYPE_CHECKING:
    from kvstore.kernel.rows import Shape


def native_columns(
    layout: TableLayout, values: BinaryColumn, places: np.ndarray, keys: BinaryColumn, names: Sequence[str]
) -> list[pa.Array] | None:
    """Columns outside the key, one row for each key, null where there is none.

    Args:
        places: Which of the keys are there, in the order of their values.

    Returns:
        None if Python has to decode the rows, or to say what is wrong with them.
    """
    from kvstore.kernel import library
    from kvstore.kernel.rows import Rows, decode, verified_schema

    kernel = library.kernel()
    if kernel is None:
        return None
    starts, ends = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    starts[places], ends[places] = values.offsets[:-1], values.offsets[1:]
    rows = Rows(values.flat, starts, ends, keys)
    written = verified_schema(kernel, rows)
    found = None if written is None else _shape(layout, SchemaId(written))
    if found is None:
        return None
    columns_of, shape = found
    columns = decode(kernel, rows, shape, [columns_of[name] for name in names if name in columns_of])
    if columns is None or len(columns) == len(names):
        return columns
    decoded, types = iter(columns), layout.schema
    return [next(decoded) if name in columns_of else pa.nulls(len(keys), types.field(name).type) for name in names]


@lru_cache(maxsize=256)
def _shape(layout: TableLayout, schema_id: SchemaId) -> tuple[dict[str, int], Shape] | None:
    """Columns of a stored schema by name, and their shape; None if there is no such schema, or the kernel can't."""
    from kvstore.kernel.rows import Shape

    found = layout.record(schema_id)
    if found is None:
        return None
    names, codec = found
    shape = Shape.of(codec.types, codec.dtype)
    return None if shape is None else ({name: place for place, name in enumerate(names)}, shape)
