"""Processes that write one table beside each other, and record what they are answered."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

import kvstore
from kvstore.testing import Recorder, certify, read_history
from tests.support.processes import Pipe

SCHEMA = {"k": "int64", "v": "string", "n": "int64"}
KEYS = 12


def create(path: Path, buckets: int = 1) -> None:
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, primary_key="k", buckets=buckets)


def write_for_ever(pipe: Pipe, path: Path, history: Path, name: str) -> None:
    """Write, read and compare rows of the same keys as others, until a word comes; each value only once."""
    random = Random(name)
    with kvstore.open(path) as store:
        client = Recorder(store.table("t"), history)
        for number in count():
            k = random.randrange(KEYS)
            row = {"k": k, "v": name, "n": number}
            match random.randrange(5):
                case 0:
                    client.get(k)
                case 1:
                    client.put_if(row, client.get(k))
                case 2:
                    client.delete(k)
                case _:
                    client.upsert(row)
            pipe.send(number)
            if pipe.poll():
                break
        client.close()
    pipe.send("closed")


def check(path: Path, history: Path) -> None:
    """Nothing acknowledged is lost or doubled, every answer is explained by one order, and the store is right."""
    with kvstore.open(path) as store:
        table = store.table("t")
        recorder = Recorder(table, history)
        for k in range(KEYS):
            recorder.get(k)
        recorder.close()
        records = read_history(history)
        written = [
            (change["v"], change["n"])
            for batch in table.changelog()
            for change in batch.to_pylist()
            if change["_change_type"] in ("insert", "update_postimage")
        ]
        report = store.check()
        assert report, report
    acknowledged = {
        (record["value"][1]["v"], record["value"][1]["n"])
        for record in records
        if record["type"] == "ok" and record["f"] == "write" and record["value"][1] is not None
    }
    assert acknowledged <= set(written)
    assert [each for each, times in Counter(written).items() if times > 1] == []
    verdict = certify(records, model="map")
    assert verdict, verdict
