"""Whole rows that replace stored rows, by the native kernel: values for the index, and change records for the log.

The bytes are those that Python makes. What the kernel does not know is left to Python: nested and dropped columns,
stored rows of an earlier schema, and damage.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numpy as np
import pyarrow as pa

from kvstore.bucket.merge.exchanged import Exchanged
from kvstore.kernel import library, writes
from kvstore.log.segment_writer import EncodedBatch
from kvstore.meta.state import TableDefinition
from kvstore.request.request import Request
from kvstore.request.row_layout import layout_of
from kvstore.request.sizes import bytes_of
from logformat.binary_column import BinaryColumn
from logformat.log.batch import BatchHeader
from logformat.log.few_records import FewRecordsEncoder, sealed

_STORED_MIN = 2
"""With fewer stored rows, Arrow may write columns as they came, with whatever nulls have for a value."""


def native_writes(definition: TableDefinition) -> NativeWrites | None:
    """The native writes of a table; None if it takes none, or if there is no kernel."""
    kernel = library.kernel()
    return None if kernel is None else _native_writes(kernel, definition)


@lru_cache(maxsize=256)
def _native_writes(kernel: ctypes.CDLL, definition: TableDefinition) -> NativeWrites | None:
    table = layout_of(definition).flat
    return None if table is None else NativeWrites(kernel, table, FewRecordsEncoder(definition.schema))


class NativeWrites:
    """Native writes of one table; see :func:`native_writes`."""

    def __init__(self, kernel: ctypes.CDLL, table: writes.Table, encoder: FewRecordsEncoder) -> None:
        self._kernel = kernel
        self._table = table
        self._encoder = encoder

    def values(
        self, keys: BinaryColumn, rows: pa.RecordBatch, places: np.ndarray
    ) -> tuple[BinaryColumn, np.ndarray, np.ndarray] | None:
        """Values of keys; see :func:`kvstore.kernel.writes.encode`."""
        if not rows.num_rows or not rows.schema.equals(self._table.schema):
            return None
        return writes.encode(self._kernel, self._table, rows, bytes_of(rows), places, keys)

    def records(self, request: Request, exchanged: Exchanged, *, preimages: bool) -> writes.Records | None:
        """Change records of a request; None if Python has to make them."""
        grouping, changes = request.grouping, request.changes
        if (
            grouping is None
            or np.count_nonzero(exchanged.lengths) < _STORED_MIN
            or not changes.rows.schema.equals(self._table.schema)
        ):
            return None
        if not preimages and not changes.is_delete.true_count:
            return None  # the records are the rows as they came
        is_delete = changes.is_delete.to_numpy(zero_copy_only=False)
        old = exchanged.old.flat[exchanged.old.offsets[0] : exchanged.old.offsets[-1]]
        batch = writes.Batch(
            *(changes.rows, grouping.order, grouping.starts, grouping.lasts),
            *(is_delete, old, exchanged.lengths, exchanged.sums),
        )
        # As in Python, without preimages an insert is not told from an update.
        records = writes.Records(self._kernel, self._table, batch, preimages=preimages, inserts=preimages)
        return records if records.count else None

    def encoded(self, header: BatchHeader, records: writes.Records) -> EncodedBatch:
        """A batch of records, uncompressed."""
        batch, place = self._encoder.batch_to_fill(
            header, records.types.tobytes(), records.body_bytes, records.nodes.tobytes(), records.buffers.tobytes()
        )
        records.fill(np.frombuffer(batch, np.uint8)[place:])
        return EncodedBatch(
            header.base_offset, header.next_offset, header.commit_timestamp, [sealed(memoryview(batch))]
        )
