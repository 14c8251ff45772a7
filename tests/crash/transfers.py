"""A process that commits small transactions to two tables, with writes of one table in between; and what they leave.

These are no steps of ``workload``, for another thing is asked of each state: it is read before anything may be
completed, some are repaired before they are written, and a transaction without a writer has no answer to compare.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

import kvstore
from kvstore.commit import ends
from kvstore.errors import Unavailable
from tests.crash.workload import MARKS, STORE
from tests.support.tables import rows_of

SETTINGS = {"segment_bytes_max": 1800, "commit_idle_ms": 60_000, "commit_wait_ms": 60_000, "map_bytes": 1 << 28}
TABLES = {"a": 1, "b": 2}
"""Names, and numbers of buckets."""
KEYS = 5


@dataclass(frozen=True, slots=True)
class TransferScript:
    """What a run does: a transaction of each step goes to both tables, a plain write to one of them."""

    seed: int
    count: int

    def kinds(self) -> list[str]:
        """For each step, ``both`` tables, or the one that it writes alone; or ``flush``."""
        dice = Random(self.seed)
        return dice.choices(["both", *TABLES, "flush"], [6, 1, 1, 1], k=self.count)

    def is_confirmed_by(self, step: int) -> bool:
        """Whether the answer to a step promises that it and all before it are durable."""
        return step >= 0

    def expected(self, steps: int) -> dict[str, dict[int, int]]:
        """Values by table and key after so many steps."""
        tables: dict[str, dict[int, int]] = {name: {} for name in TABLES}
        for number, kind in enumerate(self.kinds()[:steps]):
            for name in TABLES if kind == "both" else (kind,):
                if name in tables:
                    tables[name][number % KEYS] = number
        return tables


def run(directory: Path, script: TransferScript) -> int:
    """Do the steps; returns the exit status."""
    # With an odd seed, commits end only where something else syncs the logs.
    with mock.patch.object(ends, "OPEN_SECONDS", 60.0 if script.seed % 2 else ends.OPEN_SECONDS):
        return _run(directory, script)


def _run(directory: Path, script: TransferScript) -> int:
    marks = os.open(directory / MARKS, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    with kvstore.open(directory / STORE, **SETTINGS) as store:
        for name, buckets in TABLES.items():
            store.create_table(name, {"k": "int64", "v": "int64"}, primary_key="k", buckets=buckets)
            store.table(name).upsert([])
        # The name under which transactions are counted is made once.
        with store.transaction() as tx:
            for name in TABLES:
                tx.delete(name, [KEYS])
        for number, kind in enumerate(script.kinds()):
            os.write(marks, b"START %d\n" % number)
            row = {"k": number % KEYS, "v": number}
            if kind == "flush":
                store.flush()
            elif kind == "both":
                with store.transaction() as tx:
                    for name in TABLES:
                        tx.get(name, row["k"])
                        tx.upsert(name, row)
            else:
                store.table(kind).upsert(row)
            os.write(marks, b"ACK %d\n" % number)
    return 0


def check_read_only(path: Path, script: TransferScript, started: int) -> None:
    """Read a store, in which nothing may be completed: a table shows all that is decided, or refuses to be read."""
    with kvstore.open(path, read_only=True) as store:
        try:
            found = {name: {row["k"]: row["v"] for row in rows_of(store[name])} for name in TABLES}
            assert {name: {key: store[name].get(key)["v"] for key in values} for name, values in found.items()} == found
        except Unavailable:
            return
    assert found in [script.expected(steps) for steps in range(started + 1)]


def steps_in(directory: Path, script: TransferScript, started: int, *, repairs: bool = False) -> int:
    """How many steps a store has, of which some may have been left halfway.

    Args:
        repairs: Whether it is repaired first.

    Raises:
        AssertionError: It has none of the states that steps lead to, or can't go on.
    """
    check_read_only(directory / STORE, script, started)
    if repairs:
        report = kvstore.repair(directory / STORE)
        assert not report.gone, report.gone
    with kvstore.open(directory / STORE, **SETTINGS) as store:
        with store.snapshot() as at:
            found = {name: {row["k"]: row["v"] for row in rows_of(at[name])} for name in TABLES}
        with store.transaction() as tx:
            for name in TABLES:
                tx.upsert(name, {"k": KEYS, "v": -1})
        report = store.check()
        assert report.ok, report.findings
    with kvstore.open(directory / STORE, read_only=True) as store, store.snapshot() as at:
        again = {name: {row["k"]: row["v"] for row in rows_of(at[name])} for name in TABLES}
        assert again == {name: values | {KEYS: -1} for name, values in found.items()}
    fitting = [steps for steps in range(started, -1, -1) if script.expected(steps) == found]
    assert fitting, found
    return fitting[0]
