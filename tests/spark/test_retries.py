"""A statement that conflicts is run again, so that two applications that update one row both finish."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kvstore
from kvstore.errors import InvalidRequest
from kvstore.spark import retry
from tests.spark.catalogs import catalog_of

pytestmark = pytest.mark.spark

STATEMENTS = 2
CONFLICT = "kvstore.errors.Conflict: Rows have changed. keys=[{'k': 1}]"


@pytest.mark.spark_more
def test_two_threads_that_update_one_row_both_finish(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64 not null", "n": "int64"}, "k", buckets=2)
    table.upsert([{"k": 1, "n": 0}, {"k": 2, "n": 0}])
    with catalog_of(spark, store.path) as (_, run), ThreadPoolExecutor(2) as threads:

        def update() -> None:
            for _ in range(STATEMENTS):
                # Each conflict is with a commit of the other one: this is as many tries as it can need.
                retry(lambda: run("UPDATE kv.t SET n = n + 1"), tries=STATEMENTS + 1)

        for done in [threads.submit(update) for _ in range(2)]:
            done.result()
    assert table.scan().read_all().to_pylist() == [{"k": k, "n": 2 * STATEMENTS} for k in (1, 2)]


@pytest.mark.parametrize("conflicts", [0, 1, 3])
def test_it_is_run_as_often_as_allowed(conflicts: int) -> None:
    waiting = [CONFLICT] * conflicts

    def run() -> str:
        if waiting:
            raise PySparkException(waiting.pop())
        return "done"

    if conflicts < 3:
        assert retry(run, tries=3) == "done"
    else:
        with pytest.raises(PySparkException, match="Conflict"):
            retry(run, tries=3)
    assert waiting == []


@pytest.mark.parametrize(
    "error",
    [
        PySparkException("kvstore.errors.InvalidRequest: Two rows of one key."),
        PySparkException("kvstore.errors.ConflictOfNames: no such error"),
        ValueError(CONFLICT),
    ],
)
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    runs: list[int] = []

    def run() -> None:
        runs.append(1)
        raise error

    with pytest.raises(type(error)) as raised:
        retry(run)
    assert raised.value is error
    assert len(runs) == 1


@pytest.mark.parametrize("tries", [0, -1, 1001, 1.5, True])
def test_the_number_of_tries_is_checked_first(tries: int) -> None:
    with pytest.raises(InvalidRequest, match="`tries` must be an integer"):
        retry(lambda: pytest.fail("it was run"), tries=tries)
