"""Division of a file's rows into the batches that are loaded.

The ends of batches depend on the rows alone, so the nth batch of a file is the same each time the file is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from logformat.rows.value_bytes import row_bytes

ROWS_MAX = 1 << 16
BYTES_MAX = 16 << 20
RULE = b"%d rows, %d bytes of values without nulls" % (ROWS_MAX, BYTES_MAX)
"""Where batches end. It identifies a load, so it must change together with the rule or with :func:`row_bytes`.

Nulls do not count: rows of a file stay in the same batches if the table gains a column that the file does not have.
"""


def portions(
    batches: Iterable[pa.RecordBatch], rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of as many rows as fit.

    Args:
        batches: Rows in one of a table's schemas.
        rows_max: Maximum number of rows of a batch.
        bytes_max: Maximum bytes of a batch by :func:`row_bytes`; a larger row is a batch by itself.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        ends = np.cumsum(row_bytes(batch, nulls=False))
        row = 0
        while row < batch.num_rows:
            before = int(ends[row - 1]) if row else 0
            fitting = int(np.searchsorted(ends, before + bytes_max - size, side="right")) - row
            taken = min(max(fitting, 0 if rows else 1), rows_max - rows)
            if taken:
                waiting.append(batch.slice(row, taken))
                row += taken
                rows += taken
                size += int(ends[row - 1]) - before
            if row < batch.num_rows or rows == rows_max:
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
