"""What processes of tests do with a table that is recorded."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import kvstore
from kvstore.testing import Recorder

KEYS = ["a", "b", "c"]


def read_until_stopped(pipe: Connection, store: Path, path: Path, seed: int) -> None:
    """Read rows of random keys until the pipe says to stop; says how many it read."""
    random = Random(seed)
    with kvstore.open(store, read_only=True) as opened:
        recorder = Recorder(opened.table("t"), path)
        recorder.get("a")
        pipe.send("reading")
        count = 1
        while not pipe.poll():
            recorder.get(random.choice(KEYS))
            count += 1
        recorder.close()
    pipe.send(count)


def write_until_killed(pipe: Connection, store: Path, path: Path) -> None:
    """Count in one row until this process is killed."""
    with kvstore.open(store) as opened:
        recorder = Recorder(opened.table("t"), path)
        recorder.upsert({"k": "a", "v": 0})
        pipe.send("writing")
        count = 0
        while True:
            count += 1
            recorder.upsert({"k": "a", "v": count})


def work(recorder: Recorder, random: Random, calls: int, new: Callable[[], int]) -> None:
    """Read, write, replace and delete rows of random keys."""
    for _ in range(calls):
        key = random.choice(KEYS)
        row: dict[str, Any] = {"k": key, "v": new()}
        match random.choice(["get", "upsert", "put_if", "put_if", "delete"]):
            case "get":
                recorder.get(key)
            case "upsert":
                recorder.upsert(row)
            case "put_if":
                recorder.put_if(row, recorder.get(key))
            case "delete":
                recorder.delete(key)
