"""``python -m benchmarks.waking``: how soon a reader in another process has a change, beside a pipe, and idle readers.

A writer adds one row at a time, and then writes a byte to a pipe. One reader waits for the change and one for the byte,
in two other processes; each says when it has it, after the writer was answered. Then readers wait for nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import kvstore

PAUSE_SECONDS = 0.03
"""Between two changes: a reader that was just woken has gone to sleep again."""
READERS, IDLE_SECONDS = 100, 10.0


def follow(path: Path, pipe: Connection, count: int) -> None:
    """Send when each of so many changes was there, in nanoseconds."""
    with kvstore.open(path, read_only=True) as store:
        changes = store.table("t").changelog("latest", follow=True, columns=["k"])
        pipe.send(None)
        times: list[int] = []
        while len(times) < count:
            batch = next(changes)
            times += [time.monotonic_ns()] * batch.num_rows
        pipe.send(times)


def listen(descriptor: int, pipe: Connection, count: int) -> None:
    """The same of bytes in a pipe."""
    pipe.send(None)
    times = []
    for _ in range(count):
        os.read(descriptor, 1)
        times.append(time.monotonic_ns())
    pipe.send(times)


def idle(path: Path, pipe: Connection) -> None:
    """Send the CPU seconds of many readers that wait."""
    with kvstore.open(path, read_only=True) as store:
        for _ in range(READERS):
            changes = store.table("t").changelog("latest", follow=True)
            threading.Thread(target=next, args=(changes,), daemon=True).start()
        time.sleep(2)  # all have looked a few times
        began = time.process_time()
        time.sleep(IDLE_SECONDS)
        pipe.send(time.process_time() - began)
        pipe.recv()
        os._exit(0)


def shown(what: str, began: list[int], times: list[int]) -> str:
    took = sorted((end - start) / 1e6 for start, end in zip(began, times, strict=True))
    return f"{what}: {took[len(took) // 2]:.2f} ms at the median, {took[len(took) * 99 // 100]:.2f} ms at p99"


def measure(directory: Path, count: int) -> None:
    context = multiprocessing.get_context("fork")  # before a store is open
    reading, writing = os.pipe()
    path = directory / "store"
    kvstore.open(path).close()
    pipes = [context.Pipe() for _ in range(3)]
    mains = (follow, (path, pipes[0][1], count)), (listen, (reading, pipes[1][1], count)), (idle, (path, pipes[2][1]))
    processes = [context.Process(target=main, args=arguments, daemon=True) for main, arguments in mains]
    with kvstore.open(path) as store:
        store.create_table("t", {"k": "int64"}, "k").upsert({"k": 0})
    for process in processes[:2]:
        process.start()
    for pipe, _ in pipes[:2]:
        pipe.recv()
    answered = []
    with kvstore.open(path) as store:
        table = store.table("t")
        for k in range(1, count + 1):
            table.upsert({"k": k})
            answered.append(time.monotonic_ns())
            os.write(writing, b"x")
            time.sleep(PAUSE_SECONDS)
        changes, bytes_read = (pipe.recv() for pipe, _ in pipes[:2])
    print(shown("a change", answered, changes))
    print(shown("a byte in a pipe", answered, bytes_read))
    processes[2].start()
    seconds = pipes[2][0].recv()
    print(f"{READERS} readers that wait: {100 * seconds / IDLE_SECONDS:.2f}% of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=500)
    arguments = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        measure(Path(directory), arguments.changes)


if __name__ == "__main__":
    main()
