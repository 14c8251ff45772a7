"""Whether every store does the same work.

After the same batches all must have the same rows in their tables, and as many records in their logs; otherwise a store
would be measured that does less than the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from benchmarks.peers import Durability, KvStore, Store
from benchmarks.rows import Rows, Shape


def verify(makers: Iterable[type[Store]], shape: Shape, durability: Durability, rows: int = 5_000) -> None:
    """Give a few batches to kvstore and to each of some stores, and hold what they have then against each other.

    Raises:
        AssertionError: They have not the same.
    """
    source = Rows(rows, 7, shape)
    batches = [*source.inserts(rows // 2), *source.updates(rows // 2, 2), *source.updates(10, 10)]
    ours, our_log = _after(KvStore, shape, durability, batches)
    assert our_log == rows + 2 * (2 * (rows // 2) + 100), our_log
    for make in makers:
        theirs, their_log = _after(make, shape, durability, batches)
        assert theirs.equals(ours), f"{make.name} has other rows of {shape.name} than kvstore"
        assert their_log == our_log, f"{make.name} has {their_log} records in its log, kvstore {our_log}"


def _after(
    make: type[Store], shape: Shape, durability: Durability, batches: Iterable[pa.RecordBatch]
) -> tuple[pa.Table, int]:
    with TemporaryDirectory(prefix="kvstore-verification-") as directory:
        store = make(Path(directory), shape, durability)
        for batch in batches:
            store.apply(store.prepare(batch))
        store.settle()
        found = store.rows().combine_chunks(), store.log_count()
        store.close()
        return found
