"""``python -m benchmarks.works.bucket_writer STORE BUCKET ROWS``: a process that writes one bucket of a table.

It says when it is ready; then, for each line it is given, it writes its batches and says how long it took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import kvstore
from benchmarks.rows import Rows

_BATCH_ROWS = 25_000
_BATCHES = 20


def main() -> None:
    path, bucket, rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    source = Rows(rows, seed=bucket)
    with kvstore.open(path) as store:
        table = store.table("t")
        # Twice as many keys, of which about half are of this bucket.
        changes = [
            table.by_bucket(kvstore.Changes.upserts(batch))[bucket]
            for batch in source.updates(2 * _BATCH_ROWS, _BATCHES)
        ]
        target = table.bucket(bucket)
        target.apply(changes[0])
        table.flush()
        print("ready", flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            for each in changes:
                target.apply(each)
            table.flush()
            took = time.perf_counter() - began
            print(json.dumps({"rows": sum(each.rows.num_rows for each in changes), "seconds": took}), flush=True)


if __name__ == "__main__":
    main()
