"""How soon a reader that waits has a row of another process, beside a pipe; and what readers cost that wait.

``row_writer`` is what the process that writes runs, ``waiting_readers`` one with many readers.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting

WOKEN = "a row that another process wrote, from its acknowledgement until a reader that waits has it, {}"
WOKEN_MEDIAN, WOKEN_P99 = WOKEN.format("median"), WOKEN.format("p99")
PIPE = "a pipe"
ONE = "a reader that waits, share of a core beyond that of an open store"
HUNDRED = "a process with 100 readers that wait, share of a core"
IN_THREADS, IN_ASYNCIO = KVSTORE, "kvstore in asyncio"
_ROWS = 200
_IDLE_SECONDS = 0.01, 0.06
_WAITING_SECONDS = 10.0


def figures(setting: Setting) -> Iterator[Figure]:
    path = setting.place("waking") / "store"
    with kvstore.open(path) as store:
        store.create_table("t", {"k": "int64", "v": "int64"}, "k")
    yield from _woken(path, setting.rounds)
    for _ in range(setting.rounds):
        for way, how in ((IN_THREADS, "threads"), (IN_ASYNCIO, "asyncio")):
            none, one, hundred = (_share_of_a_core(path, count, how) for count in (0, 1, 100))
            yield Figure(ONE, way, one - none, "%")
            yield Figure(HUNDRED, way, hundred, "%")


def _share_of_a_core(path: Path, readers: int, how: str) -> float:
    """In percent, of a process with so many readers."""
    program = [sys.executable, "-m", "benchmarks.works.waiting_readers", str(path)]
    return 100 * float(subprocess.check_output([*program, str(readers), how, str(_WAITING_SECONDS)], text=True))


def _woken(path: Path, rounds: int) -> Iterator[Figure]:
    """The writer waits first, so that the reader does; rows and words at the pipe take turns."""
    command = [sys.executable, "-m", "benchmarks.works.row_writer", str(path)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin is not None
    assert writer.stdout is not None
    choose = random.Random(1)
    with kvstore.open(path, read_only=True) as store:
        changes = store.table("t").changelog("latest", follow=True)
        for number in range(rounds + 1):
            took: dict[str, list[float]] = {KVSTORE: [], PIPE: []}
            for k in range(number * _ROWS, (number + 1) * _ROWS):
                print(k, choose.uniform(*_IDLE_SECONDS), file=writer.stdin, flush=True)
                next(changes)
                had = time.monotonic()
                took[KVSTORE].append(1000 * (had - float(writer.stdout.readline())))
                print("", choose.uniform(*_IDLE_SECONDS), file=writer.stdin, flush=True)
                said = float(writer.stdout.readline())
                took[PIPE].append(1000 * (time.monotonic() - said))
            for way, each in took.items() if number else ():
                yield Figure(WOKEN_MEDIAN, way, statistics.median(each), "ms")
                yield Figure(WOKEN_P99, way, statistics.quantiles(each, n=100)[98], "ms")
    writer.communicate()
