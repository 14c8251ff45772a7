"""``python -m benchmarks.works.waiting_readers STORE COUNT (threads | asyncio) SECONDS``: readers that wait.

It prints the share of a core that they take.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

import kvstore

_BEGUN_SECONDS = 8.0
"""By then they look as seldom as they will."""


def main() -> None:
    path, count, how, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    store = kvstore.open(path, read_only=True)
    table = store.table("t")
    if how == "asyncio":
        threading.Thread(target=lambda: asyncio.run(_follow(table, count)), daemon=True).start()
    else:
        for _ in range(count):
            threading.Thread(target=lambda: list(table.changelog("latest", follow=True)), daemon=True).start()
    time.sleep(_BEGUN_SECONDS)
    cpu, wall = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    print((time.process_time() - cpu) / (time.perf_counter() - wall), flush=True)
    os._exit(0)  # the readers wait for ever


async def _follow(table: kvstore.Table, count: int) -> None:
    await asyncio.gather(*(anext(table.follow("latest")) for _ in range(count)))


if __name__ == "__main__":
    main()
