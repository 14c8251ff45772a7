"""A process that is killed in the last step of a commit of LMDB, while another has the store open, loses nothing.

The commit is durable by then, but not visible: LMDB shows it when the next writer begins. A process that reads how far
the store is, and then writes, would continue from two different moments. If no other process has the store
open, the next one to open it sees the commit.
"""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path

import kvstore
from tests.crash.conftest import Tell
from tests.crash.explore import on_disk
from tests.crash.history import History, Marks
from tests.crash.jobs import EPOCH_KEYS, EPOCH_SCHEMA, epoch
from tests.crash.recorder import Order, Recorder
from tests.crash.scripts import script
from tests.crash.trace import Plan
from tests.crash.verdict import examine, judge
from tests.crash.vfs import Disk
from tests.crash.workload import SCHEMA, STORE, TABLE, Script
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of

NOTHING_TO_DO = Script(())


def have_open(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path, read_only=True) as store:
        pipe.send(store.table(TABLE).count())
        pipe.recv()


def test_killed_in_a_commit_of_an_index(work: Path, recorder: Recorder, tell: Tell) -> None:
    plan = script(12, 40)
    history = History(plan)
    bad: list[object] = []
    for commit in count():
        (directory := work / str(commit)).mkdir()
        with kvstore.open(directory / STORE) as store:
            store.create_table(TABLE, SCHEMA, primary_key="k")
        disk, marks = Disk.holding(str(directory), on_disk(directory)), Marks(plan)
        with Child(have_open, directory / STORE) as beside:
            assert beside.hear() == 0
            trace = recorder.run(Order("run", directory, plan, Plan(kill_in_commit=commit)))
            if not trace.status:
                break
            assert trace.status == -signal.SIGKILL
            for call in trace.calls:
                disk.run(call)
                marks.run(call, disk)
            found = judge(examine(directory, history), marks.window)
            bad += [] if found is None else [(commit, found)]
    tell(f"killed in {commit} commits")
    assert commit >= 5
    assert not bad, bad[:3]


def test_killed_in_a_commit_of_the_catalog_or_an_index_while_it_commits_epochs(
    work: Path, recorder: Recorder, tell: Tell
) -> None:
    there: list[int] = []
    for commit in count():
        (directory := work / str(commit)).mkdir()
        with kvstore.open(directory / STORE) as store:
            table = store.create_table(TABLE, EPOCH_SCHEMA, primary_key="k", buckets=2)
            trace = recorder.run(Order("epochs", directory, NOTHING_TO_DO, Plan(kill_in_commit=commit)))
            if not trace.status:
                break
            assert trace.status == -signal.SIGKILL
            table.apply_epoch(kvstore.Changes.of([("upsert", {"k": -1, "v": 0})], EPOCH_SCHEMA), "another", 0)
            found = {row["v"] for row in rows_of(table) if row["k"] >= 0}
            there.append(max(found, default=-1))
            assert len(found) <= 1, "half of an epoch"
            for number in range(4):
                answer = table.apply_epoch(epoch(number), "w", number)
                assert {each.duplicated for each in answer.by_bucket.values()} == {number <= there[-1]}
            assert table.count() == len(EPOCH_KEYS) + 1
            report = store.check()
            assert report.ok, report.findings
        assert not list((directory / STORE / "staging").glob("*"))
    tell(f"killed in {commit} commits")
    assert commit >= 7
    assert there == sorted(there)
    assert set(there) == {-1, 0, 1, 2}
