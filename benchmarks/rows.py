"""The rows every store is given: five columns, keys from a permutation, everything from one seed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), False),
        pa.field("a", pa.int32()),
        pa.field("b", pa.float64()),
        pa.field("c", pa.int64()),
        pa.field("s", pa.string()),
    ]
)


class Rows:
    """Batches of a table of ``count`` rows."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.count = count
        self._random = np.random.default_rng(seed)

    def inserts(self, batch_rows: int) -> list[pa.RecordBatch]:
        """Every row once, in random order of keys."""
        keys = self._random.permutation(self.count)
        return [self.batch(keys[first : first + batch_rows]) for first in range(0, self.count, batch_rows)]

    def updates(self, batch_rows: int, batches: int) -> list[pa.RecordBatch]:
        """New values for random rows, each at most once in a batch."""
        size = min(batch_rows, self.count)
        return [self.batch(self._random.choice(self.count, size, replace=False)) for _ in range(batches)]

    def batch(self, keys: np.ndarray) -> pa.RecordBatch:
        """Rows with these keys and random values."""
        count, random = len(keys), self._random
        columns = [
            pa.array(keys, pa.int64()),
            pa.array(random.integers(0, 1000, count), pa.int32()),
            pa.array(random.random(count)),
            pa.array(random.integers(0, 1 << 40, count)),
            pa.array(np.char.add("name-", random.integers(0, 100_000, count).astype(str))),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
