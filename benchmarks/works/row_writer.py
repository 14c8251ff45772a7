"""``python -m benchmarks.works.row_writer STORE``: a process that writes a row for each line it is given.

A line is a key and, if there is something to wait for first, after how many seconds; without a key, nothing is written.
It answers with the time at which the row was acknowledged, on a clock that all processes share.
"""

from __future__ import annotations

import sys
import time

import kvstore


def main() -> None:
    with kvstore.open(sys.argv[1]) as store:
        table = store.table("t")
        for line in sys.stdin:
            key, *seconds = line.rstrip("\n").split(" ")
            for each in seconds:
                time.sleep(float(each))
            if key:
                table.upsert({"k": int(key), "v": 1})
            print(time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
