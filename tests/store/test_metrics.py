"""``Store.metrics``: what it counts is what was done, its quantiles are right, and Prometheus can read it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import InvalidRequest
from kvstore.options import StoreOptions
from kvstore.process.meter import Timer
from kvstore.store.store import Store
from tests.support.clocks import SetClock

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.string())])
SAMPLE = re.compile(r'(kvstore_[a-z_]+)(\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)*\})? (\S+)')


def test_what_was_done_is_counted(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
        store.create_table("idle", SCHEMA, primary_key="k")
        table.upsert([{"k": k, "v": "a"} for k in range(100)])
        table.delete([1, 2, 3])
        table.delete([1])  # without effect: an empty batch, and one offset
        for key in range(3 * 32):
            table.get(key)
        store.flush()
        found = store.metrics()
        offsets = sum(end for _, end in table.offsets().values())
        log = sum(path.stat().st_size for path in (tmp_path / "store/tables/1").glob("*/log/*.log"))
        assert all(name.startswith("kvstore_") for name in found)
        assert found["kvstore_changes_total"] == {"t": offsets, "idle": 0} == {"t": 104, "idle": 0}
        assert 3 <= found["kvstore_batches_total"]["t"] <= 5  # of two buckets
        assert 0 < found["kvstore_log_bytes_total"]["t"] <= log
        assert found["kvstore_gets_total"]["t"] == 3 * 32
        assert found["kvstore_get_seconds"]["t"]["count"] == 3
        for name in ("kvstore_append_seconds", "kvstore_commit_seconds"):
            durations = found[name]["t"]
            assert durations["count"] > 0
            assert 0 < durations["p50"] <= durations["p99"] <= 1.1 * durations["sum"]
        assert found["kvstore_fsync_seconds"]["count"] >= found["kvstore_batches_total"]["t"]


def test_a_dropped_table_is_no_longer_counted(store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, primary_key="k").upsert({"k": 1, "v": "a"})
    store.drop_table("t")
    assert not store.runtime.meter.tables
    store.create_table("t", SCHEMA, primary_key="k")
    assert store.metrics()["kvstore_changes_total"] == {"t": 0}


def test_lags_are_those_of_consumers_and_replicas(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert([{"k": k, "v": "a"} for k in range(10)])
        store.consumer("reader").commit("t", {0: 4})
        assert store.metrics()["kvstore_consumer_lag_changes"] == {"reader": {"t": 6}}
        assert store.metrics()["kvstore_consumer_log_bytes"]["reader"]["t"] > 0
        replica = store.add_replica(str(tmp_path / "replica"))
        (lag,) = store.metrics()["kvstore_replica_lag_edits"].values()
        assert lag > 0
        replica.ship()
        (lag,) = store.metrics()["kvstore_replica_lag_edits"].values()
        assert lag == 0


def test_a_lag_in_seconds_is_since_the_first_change_to_commit(store_path: Path) -> None:
    clock = SetClock(10_000)
    with Store(store_path, StoreOptions(), clock=clock) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
        ends = []
        for clock.now in (20_000, 23_000, 27_500):
            ends.append(table.upsert([{"k": k, "v": str(clock.now)} for k in range(9)]) and table.committed())
        places = [{bucket: end for bucket, (end, _) in each.items()} for each in ends]
        clock.now = 30_000
        expected = {"begun": 10.0, "after one": 7.0, "uneven": 7.0, "after two": 2.5, "after all": 0.0}
        for name, position in zip(
            expected, [{0: 0, 1: 0}, places[0], {0: places[0][0], 1: places[2][1]}, *places[1:]], strict=True
        ):
            store.consumer(name).commit("t", position)
        assert store.metrics()["kvstore_consumer_lag_seconds"] == {
            name: {"t": seconds} for name, seconds in expected.items()
        }
        assert store.metrics()["kvstore_consumer_log_bytes"]["after all"]["t"] == 0


def test_prometheus_reads_the_same(tmp_path: Path) -> None:
    name = 'a "quoted\\" name'
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table(name, SCHEMA, primary_key="k")
        table.upsert({"k": 1, "v": "a"})
        text, found = store.metrics("prometheus"), store.metrics()
        assert text.endswith("\n")
        described = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")]
        assert described == list(found)
        samples = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                match = SAMPLE.fullmatch(line)
                assert match, line
                samples[match[1], match[2]] = float(match[3])
        label = '{table="a \\"quoted\\\\\\" name"}'
        assert samples["kvstore_changes_total", label] == 1
        assert samples["kvstore_append_seconds_count", label] == found["kvstore_append_seconds"][name]["count"]
        assert samples["kvstore_fsync_seconds", '{quantile="0.99"}'] == found["kvstore_fsync_seconds"]["p99"]
        with pytest.raises(InvalidRequest, match="dict"):
            store.metrics("json")  # type: ignore[call-overload] # a wrong use


class Passing:
    """A clock on which as much time passes as the test says."""

    seconds = 0.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.seconds


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=300))
def test_quantiles_are_right_to_a_sixteenth(seconds: list[float]) -> None:
    clock = Passing()
    timer = Timer(clock)
    for taken in seconds:
        began = timer.now()
        clock.seconds += taken
        timer.since(began)
        clock.seconds = 0.0
    found = timer.read()
    assert found.count == len(seconds)
    assert found.sum == pytest.approx(sum(seconds))
    for share, quantile in ((0.5, found.p50), (0.99, found.p99)):
        exact = np.quantile(seconds, share, method="inverted_cdf")
        assert quantile == pytest.approx(exact, rel=1 / 15)


def test_what_takes_no_time_on_the_clock_takes_no_time() -> None:
    timer = Timer(Passing())
    timer.since(timer.now())
    found = timer.read()
    assert (found.count, found.sum) == (1, 0.0)
    assert found.p50 < 1e-8
