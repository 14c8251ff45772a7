"""Statements beside a writer: each is as if it ran alone at one moment, or fails with Conflict and writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from pyspark.errors import QueryExecutionException
from pyspark.sql import SparkSession

import kvstore
from tests.spark.catalogs import catalog_of
from tests.spark.statements import CREATE, Rows, Statement, Twice, statement

pytestmark = [pytest.mark.spark, pytest.mark.long]

STATEMENTS = 60
OTHERS = 1000
"""Keys from here on are written by the writer only."""
Change = dict[str, Any]


@dataclass
class Beside:
    """A writer in this process.

    Attributes:
        hot: How often it writes a key that statements write, too.
        versions: The first offsets of what it has written.
    """

    table: kvstore.Table
    random: Random
    hot: float
    versions: set[int] = field(default_factory=set)

    @contextmanager
    def writing(self) -> Iterator[None]:
        ends = threading.Event()

        def write() -> None:
            while not ends.wait(0.005):
                key = (
                    self.random.randrange(24) if self.random.random() < self.hot else OTHERS + self.random.randrange(9)
                )
                result = self.table.upsert({"k": key, "s": self.random.choice(["a", "beside", None]), "n": None})
                self.versions.update(each.first_offset for each in result.by_bucket.values())

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


def apply(rows: Rows, change: Change) -> None:
    if change["_change_type"] == "delete":
        del rows[change["k"]]
    elif change["_change_type"] != "update_preimage":
        rows[change["k"]] = change["s"], change["n"]


def is_explained(given: Statement, before: Rows, log: list[list[Change]], own: int) -> bool:
    """Whether some moment before the statement's own commit explains it."""
    moments, rows = [dict(before)], dict(before)
    for commit in log[: own + 1]:
        for change in commit:
            apply(rows, change)
        moments.append(dict(rows))
    for moment in range(own, -1, -1):
        try:
            delta = given.delta(moments[moment])
        except Twice:
            continue
        written = delta.deletes | delta.upserts.keys()
        since = {change["k"] for commit in log[moment:own] for change in commit}
        if delta.apply(moments[own]) == moments[own + 1] and not (since & written):
            return True
    return False


@pytest.mark.parametrize("hot", [0.0, 0.05, 0.5])
def test_a_statement_beside_a_writer_is_as_if_alone_or_fails(
    spark: SparkSession, store: kvstore.Store, hot: float
) -> None:
    random = Random(int(hot * 100))
    conflicts = 0
    with catalog_of(spark, store.path) as (_, run):
        run(CREATE.format(1))
        table = store.table("t")
        beside = Beside(table, Random(7), hot)
        for _ in range(STATEMENTS):
            given = statement(random, OTHERS)
            start = table.offsets()[0][1]
            before = {row["k"]: (row["s"], row["n"]) for row in table.scan().read_all().to_pylist()}
            refusal = ""
            with beside.writing():
                try:
                    run(given.sql)
                except QueryExecutionException as error:
                    refusal = str(error)
            log: dict[int, list[Change]] = {}
            for batch in table.changelog(start):
                for change in batch.to_pylist():
                    log.setdefault(change["_commit_version"], []).append(change)
            own = [place for place, version in enumerate(log) if version not in beside.versions]
            commits = list(log.values())
            if refusal:
                assert own == [], "it was refused, and has written"
                if "Conflict" in refusal:
                    conflicts += 1
                    assert any(change["k"] < OTHERS for commit in commits for change in commit), "others do not count"
                else:
                    assert "writes several rows of one key" in refusal
            elif own:
                assert len(own) == 1, "one commit"
                if "OVERWRITE" in given.sql:
                    assert given.delta({}).upserts.keys() <= {change["k"] for change in commits[own[0]]}
                else:
                    assert is_explained(given, before, commits, own[0]), given.sql
            else:  # it had nothing to write, as of some moment
                rows = dict(before)
                deltas = [given.delta(rows)]
                for commit in commits:
                    for change in commit:
                        apply(rows, change)
                    deltas.append(given.delta(dict(rows)))
                assert any(not delta.upserts and not (delta.deletes & before.keys()) for delta in deltas), given.sql
    assert (conflicts > 0) == (hot > 0.1) or hot == 0.05
