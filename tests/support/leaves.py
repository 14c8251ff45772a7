"""An index of which each leaf is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.index.index import Index
from logformat.ids import BucketId, TableId
from logformat.log.index_state import IndexState

STATE = IndexState(TableId(1), BucketId(0))


SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("a", pa.int32()), pa.field("s", pa.string())])


KEY_BYTES = {"of one width": (8,), "short": (1, 2, 3), "any": (1, 4, 9, 30, 200, 510)}


VALUE_BYTES = {
    "of one width": (48,),
    "nearly": (40, 48, 56),
    "short": (8, 16),
    "odd": (1, 3, 12, 13, 50, 700),
    "at the edge of a page": (1016, 2032, 2040, 4080, 4088),
    "of any size": (8, 48, 2000, 4096, 9000, 30_000),
}


@contextmanager
def an_index(directory: Path | None = None) -> Iterator[Index]:
    with TemporaryDirectory() as temporary:
        index = Index(open_environment(directory or Path(temporary), Files(), map_bytes=1 << 30, create=True))
        try:
            index.commit(STATE)
            yield index
        finally:
            index.close()


def put(index: Index, rows: dict[bytes, bytes]) -> None:
    found = sorted(rows.items())
    index.put([key for key, _ in found], [value for _, value in found])


def rows_to(count: int) -> pa.RecordBatch:
    numbers = np.arange(count)
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers), pa.array(numbers % 1000, pa.int32()), pa.array([str(n) * (n % 5) for n in numbers])],
        schema=SCHEMA,
    )
