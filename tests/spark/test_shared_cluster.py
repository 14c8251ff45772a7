"""Drivers and executors of a cluster are killed while they write a shared table: each write is in it once, whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import kvstore
import kvstore.shared
import kvstore.spark
from tests.spark.drivers.shared import KEYS
from tests.support.spark_drivers import EXECUTOR, LOCAL_CLUSTER, driver, kill, kill_all

pytestmark = pytest.mark.long

WRITES = 12
DRIVER_KILLS = 2


def test_drivers_and_executors_are_killed_while_they_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    url = (tmp_path / "place").as_uri()
    kvstore.spark.create_table(
        url, "t", {"k": "int64 not null", "v": "int64"}, "k", buckets=3, merge_engine=kvstore.Aggregate({"v": "sum"})
    )
    chance, next_write, executors_killed = random.Random(5), 0, 0
    for turn in range(DRIVER_KILLS + 1):
        dies_at = WRITES if turn == DRIVER_KILLS else (turn + 1) * WRITES // (DRIVER_KILLS + 1)
        with driver("shared", LOCAL_CLUSTER, url, next_write, WRITES) as process:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                match line.split():
                    case ["writing", number] if int(number) >= dies_at:
                        time.sleep(chance.uniform(0, 2))
                        kill_all(process)
                        break
                    case ["writing", _] if chance.random() < 0.4:
                        time.sleep(chance.uniform(0, 1))
                        kill(process.pid, EXECUTOR)
                        executors_killed += 1
                    case ["written", number]:
                        next_write = int(number) + 1
                    case ["done"]:
                        break
            else:
                raise AssertionError("".join(said))
    assert executors_killed
    assert kvstore.shared.check(url, "t")
    with kvstore.open(url, read_only=True) as opened:
        table = opened["t"]
        sums = [row["v"] for row in table.scan().read_all().to_pylist()]
        assert sums == [2**WRITES - 1] * KEYS
        assert table.changelog(columns=["_change_type"]).read_all().num_rows == KEYS * (2 * WRITES - 1)
    assert kvstore.shared.snapshot(url, "t").epoch == WRITES + 1, "each write is one epoch"
