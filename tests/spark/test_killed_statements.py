"""A driver, an executor or a helper is killed in the middle of a statement: all of it is written, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kvstore
from logformat import paths
from tests.spark.catalogs import catalog_of
from tests.spark.drivers.merge import STATEMENTS, gate, rows_after
from tests.support.spark_drivers import (
    EXECUTOR,
    HELPER,
    LOCAL_CLUSTER,
    driver,
    kill,
    kill_all,
    lines_until,
    of_a_driver,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int32())])
KILLS = {"merge": (6, 7, 7), "replace": (10, 10, 30)}
"""Numbers of killed drivers, executors and helpers."""


def values_in(path: Path) -> dict[int, int]:
    """The rows that another process finds, and completes an open commit for."""
    with kvstore.open(path) as store:
        assert store.list_tables() == ["t"]
        return {row["k"]: row["n"] for row in store.table("t").scan().read_all().to_pylist()}


def made(path: Path) -> None:
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=4)
        table.upsert([{"k": k, "n": n} for k, n in rows_after(0).items()])


@pytest.mark.spark_more
@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_a_helper_that_is_killed_in_the_middle_of_a_statement(
    spark: SparkSession, store_path: Path, statement: str
) -> None:
    made(store_path)
    failed: list[str] = []
    with catalog_of(spark, store_path) as (_, run):

        def work() -> None:
            try:
                run(statement.format(number=1))
            except (PySparkException, Py4JJavaError) as error:  # the second if a job fails as it writes
                failed.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive() and not list((store_path / paths.STAGING).glob("*")):
            time.sleep(0.001)
        kill(spark.sparkContext._gateway.proc.pid, HELPER)
        thread.join()
        number = 0 if failed else 1
        if failed:
            assert "The helper process of kvstore ended" in failed[0]
        assert values_in(store_path) in (rows_after(number), rows_after(1))
        run(statement.format(number=2))  # another helper takes over
    assert values_in(store_path) == rows_after(2)


@pytest.mark.long
@pytest.mark.parametrize("kind", STATEMENTS)
def test_drivers_killed_in_the_middle_of_a_statement(store_path: Path, kind: str) -> None:
    made(store_path)
    chance = Random(1)
    number = 1
    for _ in range(KILLS[kind][0]):
        for each in range(number, number + 9):
            gate(store_path, each).touch()
        with driver("merge", "local[2]", store_path, number, kind) as process:
            said = lines_until(process, "done")  # the first takes long, and is no measure of the others
            began = time.monotonic()
            said += lines_until(process, "done")
            took = time.monotonic() - began
            time.sleep(chance.uniform(0, took))
            kill_all(process)
            kill(process.pid, HELPER)
            rest = process.stdout.read().splitlines() if process.stdout is not None else []
            assert not [line for line in said if line.startswith("failed")], said
            last = max(int(line.split()[1]) for line in [*said, *rest] if line.startswith("began"))
        number = kept(store_path, last - 1, last) + 1


@pytest.mark.long
@pytest.mark.parametrize("kind", STATEMENTS)
@pytest.mark.parametrize("word", [HELPER, EXECUTOR])
def test_helpers_and_executors_killed_in_the_middle_of_a_statement(store_path: Path, word: bytes, kind: str) -> None:
    made(store_path)
    kills = KILLS[kind][2 if word == HELPER else 1]
    chance = Random(2)
    outcomes = []
    gate(store_path, 1).touch()
    gate(store_path, 2).touch()
    with driver("merge", LOCAL_CLUSTER, store_path, 1, kind) as process:
        lines_until(process, "done")
        began = time.monotonic()
        lines_until(process, "done")
        took = time.monotonic() - began
        before = 2
        for number in range(3, 3 + kills):
            gate(store_path, number).touch()
            lines_until(process, "began")
            time.sleep(chance.uniform(0, took))
            wait_until(lambda: bool(of_a_driver(process.pid, word)))  # the last kill may have left none yet
            victims = of_a_driver(process.pid, word)
            # Of executors one, as if its machine had died; of helpers all, with what they have forked.
            for victim in victims if word == HELPER else victims[:1]:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            line = outcome(process)
            outcomes.append(line)
            # A statement that was refused may have been committed: then the error says that this is not known.
            before = kept(store_path, *((number,) if line.startswith("done") else (before, number)))
            if line.startswith("failed") and before == number:
                assert "in the middle of the commit" in line, line
    assert len(outcomes) == kills


def outcome(process: subprocess.Popen[str]) -> str:
    """What a driver says of a statement in the end."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(("done", "failed")):
            return line
    raise AssertionError("".join(said[-60:]))


def kept(path: Path, *numbers: int) -> int:
    """The number of the statement whose rows the table has; it must be one of these."""
    found = values_in(path)
    (number,) = set(found.values())
    assert found == rows_after(number)
    assert number in numbers
    return number
