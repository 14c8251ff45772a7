"""The function that appends text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from logformat.binary_column import BinaryColumn, join
from merge_engines.columns import at, column_of, take
from merge_engines.runs import Runs

_BYTES_MAX = 2**31 - 1


def joined(column: pa.Array, runs: Runs, wanted: np.ndarray, delimiter: str) -> pa.Array:
    """Text that is not null, joined by a delimiter.

    Raises:
        pa.ArrowInvalid: The results are more than one Arrow column can hold.
    """
    there, results = runs.not_null(column, wanted)
    # The whole text of every run, run after run: each result is a prefix of its run's text.
    before = np.zeros(len(there.firsts), np.int64)
    before[there.later] = 1
    delimiters = pa.array([b"", delimiter.encode()], pa.binary()).take(pa.array(before))
    texts = take(column.cast(pa.binary()), there.places)
    pieces = join(BinaryColumn.from_arrow(delimiters), BinaryColumn.from_arrow(texts))
    starts, ends = pieces.offsets[:-1][there.firsts], pieces.offsets[1:]
    starts, ends = (np.where(results < 0, 0, at(bounds, results)) for bounds in (starts, ends))
    cuts = np.zeros(len(results) + 1, np.int64)
    np.cumsum(ends - starts, out=cuts[1:])
    if cuts[-1] > _BYTES_MAX:
        raise pa.ArrowInvalid("The results are too long for one column.")
    views = pa.LargeListViewArray.from_arrays(pa.array(starts), pa.array(ends - starts), pa.array(pieces.flat))
    text = BinaryColumn(np.asarray(views.flatten()), cuts).to_arrow()
    return pa.Array.from_buffers(
        column.type, len(results), [column_of(cuts, results >= 0, pa.int64()).buffers()[0], *text.buffers()[1:]]
    )
