"""Splits rows into batches of a size that a bucket takes at once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

BATCH_BYTES = 64 << 20
"""Larger rows are applied in several batches; one batch, with the rows it replaces, fits into the log."""


_SMALL_BYTES = 1 << 20
_SLICE_BYTES, _ROW_BYTES = 1 << 14, 1 << 10
"""Buffers of more bytes, and of more for each row, may be those of a larger batch, of which these rows are a slice."""


def bytes_of(rows: pa.RecordBatch) -> int:
    """Approximate bytes of rows; for small slices this includes the rest of their buffers."""
    around: int = rows.get_total_buffer_size()
    is_right = around <= _SLICE_BYTES or around <= min(_SMALL_BYTES, rows.num_rows * _ROW_BYTES)
    return around if is_right else int(rows.nbytes)  # nbytes costs thirty times as much


def of_size(batches: Iterator[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of ``rows_max`` rows or about ``BATCH_BYTES``; the last batch is shorter."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        while batch.num_rows:
            part = batch if batch.num_rows <= rows_max - rows else batch.slice(0, rows_max - rows)
            while (part_bytes := bytes_of(part)) > BATCH_BYTES and part.num_rows > 1:
                part = part.slice(0, part.num_rows // 2)
            if waiting and size + part_bytes > BATCH_BYTES:
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            rows += part.num_rows
            size += part_bytes
            if rows == rows_max:
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
