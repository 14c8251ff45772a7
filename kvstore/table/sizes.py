"""Rows cut into batches that a bucket takes at once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

BATCH_BYTES = 64 << 20
"""Rows of more bytes are applied in several batches; with the rows they replace, one still fits into the log."""


def of_size(batches: Iterator[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of ``rows_max``, or of fewer that have about ``BATCH_BYTES``; the last one shorter."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows_max - rows)
            while part.num_rows > 1 and part.nbytes > BATCH_BYTES:
                part = part.slice(0, part.num_rows // 2)
            if waiting and size + part.nbytes > BATCH_BYTES:
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
            batch = batch.slice(part.num_rows)
            waiting.append(part)
            rows += part.num_rows
            size += part.nbytes
            if rows == rows_max:
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
