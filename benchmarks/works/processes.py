"""Several processes: two that write a bucket each, beside one that writes one; and some that read what another writes.

``bucket_writer``, ``row_writer``, ``bulk_writer`` and ``first_get`` are what the others run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import kvstore
from benchmarks.measuring import KVSTORE, Figure, Setting, in_turns
from benchmarks.rows import SCHEMA, Rows

TWO_BUCKETS = "update of buckets, batches of 25,000"
ONE, TWO = "one process", "two processes"
SEEN = "a row that another process wrote, from its acknowledgement until it is read, {}"
SEEN_MEDIAN, SEEN_P99 = SEEN.format("median"), SEEN.format("p99")
_ROWS_SEEN = 300
FIRST_GET = "the first get of a process while another one loads random keys, slowest of {}"
_FIRST_GETS = 12
FIRST_GET_TIME, FIRST_GET_MEMORY = (FIRST_GET.format(_FIRST_GETS) + what for what in ("", ", memory"))


def figures(setting: Setting) -> Iterator[Figure]:
    path = setting.directory / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        for batch in Rows(setting.rows).inserts(50_000):
            table.upsert(batch)
    writers = [_started(path, bucket, setting.rows) for bucket in range(2)]
    yield from in_turns(TWO_BUCKETS, {ONE: lambda: _rate(writers[:1]), TWO: lambda: _rate(writers)}, setting.rounds)
    for writer in writers:
        writer.communicate()
    yield from _seen(setting.place("seen") / "store", setting.rounds)
    yield from _first_gets(setting.place("first") / "store", setting.rounds)


def _seen(path: Path, rounds: int) -> Iterator[Figure]:
    with kvstore.open(path) as store:
        store.create_table("t", {"k": "int64", "v": "int64"}, "k")
    writer = _run("row_writer", path)
    assert writer.stdin is not None
    assert writer.stdout is not None
    with kvstore.open(path) as store:
        table = store.table("t")
        for number in range(rounds + 1):
            took = []
            for k in range(number * _ROWS_SEEN, (number + 1) * _ROWS_SEEN):
                print(k, file=writer.stdin, flush=True)
                acknowledged = float(writer.stdout.readline())
                assert table.get(k) is not None, "a stale read"
                took.append(1000 * (time.monotonic() - acknowledged))
            if number:
                yield Figure(SEEN_MEDIAN, KVSTORE, statistics.median(took), "ms")
                yield Figure(SEEN_P99, KVSTORE, statistics.quantiles(took, n=100)[98], "ms")
    writer.communicate()


def _first_gets(path: Path, rounds: int) -> Iterator[Figure]:
    with kvstore.open(path) as store:
        store.create_table("t", {"k": "int64", "text": "string"}, "k")
    writer = _run("bulk_writer", path)
    assert writer.stdout is not None
    writer.stdout.readline()
    for _ in range(rounds):
        found = [_run("first_get", path).communicate()[0].split() for _ in range(_FIRST_GETS)]
        times, sizes = (list(map(float, each)) for each in zip(*found, strict=True))
        yield Figure(FIRST_GET_TIME, KVSTORE, max(times), "ms")
        yield Figure(FIRST_GET_MEMORY, KVSTORE, max(sizes), "MiB")
    writer.communicate("end\n")


def _started(path: Path, bucket: int, rows: int) -> subprocess.Popen[str]:
    writer = _run("bucket_writer", path, bucket, rows)
    assert writer.stdout is not None
    writer.stdout.readline()
    return writer


def _run(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"benchmarks.works.{program}", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _rate(writers: list[subprocess.Popen[str]]) -> float:
    """Rows a second of all together, until the last is done."""
    for writer in writers:
        assert writer.stdin is not None
        print("go", file=writer.stdin, flush=True)
    found = [json.loads(writer.stdout.readline()) for writer in writers if writer.stdout is not None]
    return sum(each["rows"] for each in found) / max(each["seconds"] for each in found)
