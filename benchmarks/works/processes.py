"""Two processes that write a bucket each, beside one that writes one; ``bucket_writer`` is what they run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kvstore
from benchmarks.measuring import Figure, Setting, in_turns
from benchmarks.rows import SCHEMA, Rows

TWO_BUCKETS = "update of buckets, batches of 25,000"
ONE, TWO = "one process", "two processes"


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


def _started(path: Path, bucket: int, rows: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.works.bucket_writer", str(path), str(bucket), str(rows)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    writer.stdout.readline()
    return writer


def _rate(writers: list[subprocess.Popen[str]]) -> float:
    """Rows a second of all together, until the last is done."""
    for writer in writers:
        assert writer.stdin is not None
        print("go", file=writer.stdin, flush=True)
    found = [json.loads(writer.stdout.readline()) for writer in writers if writer.stdout is not None]
    return sum(each["rows"] for each in found) / max(each["seconds"] for each in found)
