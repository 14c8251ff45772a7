"""Drivers and executors that are processes of their own: they read what Python reads, and die when they like."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
import pytest

import kvstore
from kvstore.spark.java import find_java
from logformat import paths
from tests.support.spark_drivers import LOCAL_CLUSTER, ROOT, driver, free_port, kill_all, lines_until
from tests.support.spark_tables import SCHEMA, python_changes
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

KILLS = 10


def listens(host: str, port: int) -> bool:
    """Whether a process accepts connections there."""
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


@pytest.fixture(scope="module")
def standalone() -> Iterator[str]:
    """A master and two workers on two hosts, as far as Spark knows."""
    home = Path(pyspark.__file__).parent
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "JAVA_HOME": str(find_java()), "PYTHONPATH": str(ROOT), "SPARK_HOME": str(home)}
    deploy = "org.apache.spark.deploy"
    commands = [("127.0.0.1", [f"{deploy}.master.Master", "--port", port])]
    commands += [
        (host, [f"{deploy}.worker.Worker", "--cores", 1, "--memory", "1g", master])
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    started = []
    for host, command in commands:
        ui = free_port()
        started.append(
            subprocess.Popen(
                [home / "bin" / "spark-class", *map(str, command), "--host", host, "--webui-port", str(ui)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        wait_until(partial(listens, host, ui))
    yield master
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(params=["local-cluster", "standalone"])
def master(request: pytest.FixtureRequest) -> str:
    """A cluster of two executors."""
    return LOCAL_CLUSTER if request.param == "local-cluster" else str(request.getfixturevalue("standalone"))


def test_executors_read_what_python_reads(store: kvstore.Store, tmp_path: Path, master: str) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=4)
    table.upsert([{"k": k, "s": f"{k:0100}", "v": 0.0} for k in range(100_000)])
    table.upsert([{"k": k, "s": f"{k:0100}", "v": 1.0} for k in range(50_000)])
    table.delete(list(range(0, 1000, 7)))
    table.flush()
    with driver("read", master, store.path, tmp_path) as process:
        said = lines_until(process, "streamed")
    printed = [line.split()[1:] for line in said if line.startswith(("counted", "streamed"))]
    changes = end_of(table)
    assert [int(each[-1]) for each in printed] == [99_857, changes, changes - 50_000, 99_857]
    assert all(int(each[0]) == 2 for each in printed[:3])
    found = pq.read_table(tmp_path / "changes").sort_by([("_bucket", "ascending"), ("_log_offset", "ascending")])
    place = found.schema.get_field_index("_commit_timestamp")
    times = pc.assume_timezone(found.column(place).cast(pa.timestamp("us")), "UTC")  # Spark's INT96 has no zone
    assert found.set_column(place, "_commit_timestamp", times).to_pylist() == python_changes(table)


def test_executors_that_lack_the_store_are_named_before_a_task_runs(store: kvstore.Store, tmp_path: Path) -> None:
    store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "s": "a", "v": 0.0}])
    store.flush()
    with driver("unseen", LOCAL_CLUSTER, store.path, tmp_path) as process:
        said = lines_until(process, "done")
    refused = [line for line in said if line.startswith("refused")]
    assert len(refused) == 2, "a batch and a stream"
    for line in refused:
        assert "NotAStore: This host does not have the store" in line
        assert f"host={socket.gethostname()}" in line
    assert not any("Lost task" in line for line in said)


@contextmanager
def written_meanwhile(source: kvstore.Table, pause: float = 0.05) -> Iterator[None]:
    """Writes all the time; each row that was ever written has a number of its own, so one that came twice shows."""
    source.upsert([{"k": k, "s": "before", "v": float(k)} for k in range(5000)])
    ends = threading.Event()

    def write() -> None:
        chooser = random.Random(1)
        number = 5000
        while not ends.is_set():
            keys = chooser.sample(range(8000), 40)
            source.upsert([{"k": k, "s": "after", "v": float(number + place)} for place, k in enumerate(keys)])
            number += len(keys)
            source.delete(chooser.sample(range(8000), 5))
            time.sleep(pause)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ends.set()
        writer.join()


def assert_replicated_once(source: kvstore.Table, target: kvstore.Table, checkpoint: Path) -> None:
    """Bring what is left, and see that every change came once."""
    source.flush()
    with driver("replicate", "local[2]", source.parts.store_path, checkpoint, "once") as process:
        lines_until(process, "done")
    assert sorted(map(repr, rows_of(target))) == sorted(map(repr, rows_of(source)))
    times = Counter(row["v"] for row in python_changes(target) if row["_change_type"] in ("insert", "update_postimage"))
    assert max(times.values()) == 1
    assert list(target.writers) == ["replica"]


def test_a_replica_whose_driver_is_killed_ten_times(store: kvstore.Store, tmp_path: Path) -> None:
    source = store.create_table("t", SCHEMA, "k", buckets=4)
    target = store.create_table("u", SCHEMA, "k", buckets=3)
    chance = random.Random(2)
    progress = []
    with written_meanwhile(source):
        for number in range(KILLS):
            with driver("replicate", "local[2]", store.path, tmp_path / "checkpoint") as process:
                lines_until(process, "started")
                before = end_of(target)
                while number % 3 and end_of(target) == before:  # each third is killed before it comes to anything
                    assert_runs(process)
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, 1.5))
                assert_runs(process)
                kill_all(process)
                assert process.wait() == -signal.SIGKILL
            progress.append(end_of(target))
    assert_replicated_once(source, target, tmp_path / "checkpoint")
    assert len(set(progress)) > 3, progress  # they were killed while it went on


def test_executors_and_helpers_are_killed_twenty_times_in_a_stream(store: kvstore.Store, tmp_path: Path) -> None:
    source = store.create_table("t", SCHEMA, "k", buckets=4)
    target = store.create_table("u", SCHEMA, "k", buckets=3)
    chance = random.Random(3)
    killed: Counter[str] = Counter()
    with written_meanwhile(source, pause=0.5):
        while killed.total() < 2 * KILLS:
            with driver("replicate", LOCAL_CLUSTER, store.path, tmp_path / "checkpoint", "small") as process:
                lines_until(process, "started")
                before = end_of(target)
                while process.poll() is None and killed.total() < 2 * KILLS:
                    if end_of(target) == before:
                        time.sleep(0.01)
                        continue
                    kind = ("CoarseGrainedExecutorBackend", "kvstore.spark.connector.helper")[killed.total() % 2]
                    time.sleep(chance.uniform(0, 0.5))
                    if victims := processes_below(process.pid, kind):
                        with suppress(ProcessLookupError):
                            os.kill(chance.choice(victims), signal.SIGKILL)
                            killed[kind] += 1
                            before = end_of(target)
    assert min(killed.values()) == KILLS
    assert_replicated_once(source, target, tmp_path / "checkpoint")


def processes_below(ancestor: int, word: str) -> list[int]:
    """Process ids of the descendants of a process whose command has a word."""
    parents, commands = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
            commands[int(process.name)] = (process / "cmdline").read_bytes()
    found = []
    for pid, command in commands.items():
        above = pid
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor and word.encode() in command:
            found.append(pid)
    return found


def assert_runs(process: subprocess.Popen[str]) -> None:
    """See that a driver has not ended by itself."""
    assert process.poll() is None, process.stdout and process.stdout.read()


@pytest.mark.skipif(find_spec("grpc") is None, reason="needs pyspark[connect]")
def test_spark_connect_reads_and_writes(store: kvstore.Store, tmp_path: Path) -> None:
    table = store.create_table("t", {"k": "int64 not null", "s": "string"}, "k")
    table.upsert([{"k": k, "s": str(k)} for k in range(10)])
    table.flush()
    with driver("connect", store.path, tmp_path / "checkpoint") as process:
        said = dict(line.split(" ", 1) for line in lines_until(process, "done")[:-1] if line[0].islower())
    names = "counted", "filtered", "inserted", "copied", "python", "shared", "sink"
    assert {name: said[name].strip() for name in names} == {
        "counted": "10",
        "filtered": "['3']",
        "inserted": "[(0, '0'), (1, 'x')]",
        "copied": "['1', '1', '0']",
        "python": "10",
        "shared": "1",
        "sink": "True",
    }


def end_of(table: kvstore.Table) -> int:
    """How many offsets all its buckets have."""
    return sum(end for _, end in table.offsets().values())


def test_executors_killed_while_they_write(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    rows = 40_000
    with driver("write", LOCAL_CLUSTER, store.path, rows, "slowly") as process:
        lines_until(process, "writes")
        killed = 0
        while killed < 2:
            time.sleep(2)
            executors = subprocess.run(
                ["pgrep", "-g", str(os.getpgid(process.pid)), "-f", "CoarseGrainedExecutorBackend"],
                capture_output=True,
                text=True,
                check=False,
            ).stdout.split()
            assert executors
            os.kill(int(executors[0]), signal.SIGKILL)
            killed += 1
        lines_until(process, "done")
    assert table.count() == rows
    inserted = Counter(row["k"] for row in python_changes(table))
    assert len(inserted) == rows
    assert max(inserted.values()) == 1


def test_a_second_attempt_beside_the_first(store: kvstore.Store, standalone: str) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    with driver("write", standalone, store.path, 8000, "twice") as process:
        lines_until(process, "done")
    inserted = Counter(row["k"] for row in python_changes(table))
    assert len(inserted) == 8000
    assert max(inserted.values()) == 1
    assert {path.name for path in store.path.parent.glob("attempt-*")} == {"attempt-0", "attempt-1"}
    # The attempt that lost may have staged its rows.
    left = [path for path in (store.path / paths.STAGING).glob("*") if not paths.is_task_file(path.name)]
    assert not left
