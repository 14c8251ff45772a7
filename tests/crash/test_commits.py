"""A process that dies in the middle of a commit over several buckets leaves all of it or nothing, and blocks no other.

Killed at each of its steps, with the buckets held by itself, by a live process that goes on writing, by a dead one, and
by a dead one whose forked child lives.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.commit_lock import CommitLock
from kvstore.bucket.handle import BucketHandle
from kvstore.commit.staging import Staging
from kvstore.disk.files import Files
from kvstore.errors import CorruptData
from kvstore.log.log import Log
from kvstore.meta.journal import Journal
from kvstore.table.open_table import OpenTable
from logformat import paths
from logformat.ids import TableId
from tests.crash.deaths import die, dies
from tests.crash.places import workplace
from tests.support.processes import Child, Pipe
from tests.support.proof import Proves
from tests.support.tables import changes_to, rows_of
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
BUCKETS = 3
KEYS = range(12)


def to_all(value: int) -> kvstore.Changes:
    return changes_to(SCHEMA, dict.fromkeys(KEYS, value))


# Each says where a process dies that has the store open and is about to commit, and whether the commit takes place.
STEPS: dict[str, tuple[Callable[[], None], bool]] = {
    "nothing is staged": (lambda: dies(Staging, "write"), False),
    "half is staged": (lambda: dies(Files, "sync_directory"), False),
    "all is staged": (lambda: dies(Staging, "write", after=True), False),
    "before the intent": (lambda: dies(Journal, "append"), False),
    "after the intent": (lambda: dies(Journal, "append", after=True), True),
    "before an append": (lambda: dies(Log, "append"), True),
    "after one append": (lambda: dies(Log, "append", after=True), True),
    "after two appends": (lambda: dies(Log, "append", call=1, after=True), True),
    "before the end": (lambda: dies(Journal, "append_later"), True),
    "after the edit of the end": (lambda: dies(Journal, "append_later", after=True), True),
    "after the end": (lambda: dies(Staging, "remove", after=True), True),
}
ASKING = {
    "while it asks": (lambda: dies(CommitLock, "is_wanted"), False),
    "when it has asked": (lambda: dies(BucketHandle, "writer", call=1), False),
}


QUICK_STEP = "after the intent"
"""In `make test`, only a process that dies here leaves a child, too."""
QUICK_STEPS_BESIDE_ANOTHER = ("half is staged", "after the intent", "after one append", "when it has asked")
"""In `make test`, a process with the buckets goes on beside one that dies here."""
DEATHS = [
    pytest.param(
        step,
        child_lives,
        id=f"{step}, its child lives" if child_lives else step,
        marks=[pytest.mark.long] if child_lives and step != QUICK_STEP else [],
    )
    for child_lives in (False, True)
    for step in STEPS
]


def leave_a_child(path: Path) -> None:
    """Fork a child that has all this process has open, and lives as long as the store is there."""
    if not os.fork():
        while path.exists():
            time.sleep(0.05)
        os._exit(0)


def commit(pipe: Pipe, path: Path, step: str | None, *, own: bool, child_lives: bool = False) -> None:
    """Commit epoch 1, dying at a step."""
    with kvstore.open(path) as store:
        store.table("t").apply_epoch(kvstore.Changes.of([], SCHEMA), "w", 0)
    store = kvstore.open(path)
    table = store.table("t")
    if own:
        table.apply(to_all(0))
        store.flush()
    if child_lives:
        leave_a_child(path)
    if step is not None:
        (STEPS | ASKING)[step][0]()
    pipe.send("ready")
    pipe.recv()
    table.apply_epoch(to_all(1), "w", 1)
    pipe.send("done")


def write(pipe: Pipe, path: Path, *, child_lives: bool = False) -> None:
    """Hold all buckets, and write a row of its own over and over."""
    store = kvstore.open(path)
    table = store.table("t")
    table.apply(to_all(0))
    if child_lives:
        leave_a_child(path)
    pipe.send("ready")
    pipe.recv()
    written = 0
    has_stopped = False
    while not has_stopped:
        has_stopped = pipe.poll()
        table.upsert({"k": 100, "v": written})  # once more after the word to stop, which comes when the other is dead
        written += 1
    pipe.send(written)


@pytest.fixture
def path() -> Iterator[Path]:
    with workplace() as directory:
        with kvstore.open(directory / "s") as store:
            store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS).apply(to_all(0))
        yield directory / "s"


def judge(path: Path, *, takes_place: bool, written: int | None = None) -> None:
    """All or nothing, seen by a reader at once; the epoch can be sent again, and nothing is left lying about."""
    with kvstore.open(path) as store:
        table = store.table("t")
        found = {row["k"]: row["v"] for row in rows_of(table)}
        if written is not None:
            assert found.pop(100) == written - 1
        assert found == dict.fromkeys(KEYS, int(takes_place))
        again = table.apply_epoch(to_all(1), "w", 1)
        assert [each.duplicated for each in again.by_bucket.values()] == [takes_place] * BUCKETS
        table.apply_epoch(to_all(2), "w", 2)
        assert {row["v"] for row in rows_of(table) if row["k"] in KEYS} == {2}
        writer_id = table.writers["w"].writer_id
        assert [table.bucket(bucket).last_sequence(writer_id) for bucket in range(BUCKETS)] == [2] * BUCKETS
        report = store.check()
        assert report.ok, report.findings
    assert not list((path / "staging").glob("*"))
    assert not list((path / "tables").glob("*/WANTED"))


@pytest.mark.parametrize(("step", "child_lives"), DEATHS)
def test_killed_with_the_buckets_its_own(path: Path, proves: Proves, step: str, child_lives: bool) -> None:
    with Child(commit_own, path, step, child_lives) as child:
        assert child.hear() == "ready"
        child.say("go")
        assert child.join() == -signal.SIGKILL
        judge(path, takes_place=STEPS[step][1])
    proves("kill -9 points", 1)


def commit_own(pipe: Pipe, path: Path, step: str, child_lives: bool) -> None:
    commit(pipe, path, step, own=True, child_lives=child_lives)


def commit_others(pipe: Pipe, path: Path, step: str | None) -> None:
    commit(pipe, path, step, own=False)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=[] if step in QUICK_STEPS_BESIDE_ANOTHER else pytest.mark.long)
        for step in [*STEPS, "when it has asked"]
    ],
)
def test_killed_with_the_buckets_of_a_live_process(path: Path, proves: Proves, step: str) -> None:
    """That one gets them back, goes on writing, and has all of the commit or nothing."""
    with Child(commit_others, path, step) as child:
        assert child.hear() == "ready"
        with Child(write, path) as holder:
            assert holder.hear() == "ready"
            holder.say("go")
            child.say("go")
            assert child.join() == -signal.SIGKILL
            holder.say("stop")
            written = holder.hear()
            assert written > 0
            holder.join()
        takes_place = (STEPS | ASKING)[step][1]
        judge(path, takes_place=takes_place, written=written)
    proves("kill -9 points", 1)


def test_a_question_of_a_dead_process_is_removed_by_a_store_that_closes_before_it_looks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenTable, "hand_over", lambda _: None)
    wanted = paths.wanted_file(path, TableId(1))
    with kvstore.open(path) as store:
        Files().publish(wanted, b"")
        store.table("t").apply(to_all(1))
        assert wanted.exists()
    assert not wanted.exists()


@pytest.mark.parametrize(("step", "child_lives"), DEATHS)
def test_killed_with_the_buckets_of_a_dead_process(path: Path, proves: Proves, step: str, child_lives: bool) -> None:
    with ExitStack() as stack:
        child = stack.enter_context(Child(commit_others, path, step))
        assert child.hear() == "ready"
        holder = stack.enter_context(Child(write_with_child, path, child_lives))
        assert holder.hear() == "ready"
        holder.kill()
        child.say("go")
        assert child.join() == -signal.SIGKILL
        judge(path, takes_place=STEPS[step][1])
    proves("kill -9 points", 1)


def write_with_child(pipe: Pipe, path: Path, child_lives: bool) -> None:
    write(pipe, path, child_lives=child_lives)


def test_the_holder_is_killed_while_it_is_asked(path: Path, proves: Proves) -> None:
    with Child(commit_others, path, None) as child:
        assert child.hear() == "ready"
        with Child(die_when_wanted, path) as holder:
            assert holder.hear() == "ready"
            child.say("go")
            assert child.hear() == "done"
            assert holder.join() == -signal.SIGKILL
        child.join()
        judge(path, takes_place=True)
    proves("kill -9 points", 1)


def die_when_wanted(pipe: Pipe, path: Path) -> None:
    table = kvstore.open(path).table("t")
    table.apply(to_all(0))
    real = CommitLock.is_wanted

    def planted(self: CommitLock) -> bool:
        if real(self):
            die()
        return False

    CommitLock.is_wanted = planted  # type: ignore[method-assign]
    pipe.send("ready")
    signal.pause()


def test_a_staged_batch_that_is_damaged_stops_its_bucket_and_says_which_file(path: Path) -> None:
    with Child(commit_own, path, "after the intent", False) as child:
        assert child.hear() == "ready"
        child.say("go")
        assert child.join() == -signal.SIGKILL
    (staged,) = (path / "staging").glob("*")
    data = staged.read_bytes()
    staged.write_bytes(data[:-64])
    with kvstore.open(path) as store:
        table = store.table("t")
        assert {row["v"] for row in rows_of(table)} == {0, 1}  # it can be read, and the other buckets have theirs
        assert any("was not completed" in finding for finding in store.check().findings)
        for _ in range(2):
            with pytest.raises(CorruptData, match=r"staged.*batches"):
                table.apply_epoch(to_all(1), "w", 1)
    staged.write_bytes(data)
    judge(path, takes_place=True)


@pytest.mark.parametrize("step", ["after the intent", "after one append"])
@pytest.mark.parametrize("how", ["read", "write"])
def test_a_process_with_the_table_open_finishes_what_another_began(path: Path, how: str, step: str) -> None:
    with kvstore.open(path) as store:
        table = store.table("t")
        assert {row["v"] for row in rows_of(table)} == {0}
        with Child(commit_own, path, step, False) as child:
            assert child.hear() == "ready"
            child.say("go")
            assert child.join() == -signal.SIGKILL
        if how == "write":
            # Each bucket appends its part before what comes after it.
            table.apply(to_all(5))
            log = [change for batch in table.changelog() for change in batch.to_pylist()]
            history = {k: [c["v"] for c in log if c["k"] == k and c["_change_type"] != "update_preimage"] for k in KEYS}
            assert history == {key: [0, 0, 1, 5] for key in KEYS}
            table.apply(to_all(1))
        else:
            wait_until(lambda: {row["v"] for row in rows_of(table)} == {1})
    judge(path, takes_place=True)


def send_epochs(pipe: Pipe, path: Path, count: int) -> None:
    table = kvstore.open(path).table("t")
    for epoch in range(count):
        table.apply_epoch(to_all(epoch), "w", epoch)
    pipe.send("done")
    pipe.recv()


@pytest.mark.parametrize("keys", [KEYS, range(1)], ids=["of all buckets", "of one bucket"])
def test_a_single_writer_has_its_buckets_back_after_every_commit_of_another(path: Path, keys: range) -> None:
    """Also those it had not taken again, or never had, when the next commit came."""
    rows = [{"k": k, "v": -1} for k in keys]
    with kvstore.open(path) as store:
        table = store.table("t")
        table.upsert(rows)
        with Child(send_epochs, path, 2) as other:
            assert other.hear() == "done"
            table.upsert(rows)
            table.apply(to_all(7))
            other.say("end")
            other.join()
        assert {row["v"] for row in rows_of(table)} == {7}


def test_a_process_that_only_commits_keeps_the_buckets(path: Path) -> None:
    """It would have to open them again for every epoch."""
    with kvstore.open(path) as store:
        table = store.table("t")
        for epoch in range(2):
            table.apply_epoch(to_all(epoch), "w", epoch)
            assert all(table.bucket(bucket).handle.writes for bucket in table.offsets())


def test_a_snapshot_that_is_interrupted_by_a_commit_of_another_is_taken_all_the_same(path: Path) -> None:
    with kvstore.open(path) as store:
        table = store.table("t")
        table.apply(to_all(1))
        with Child(send_epochs, path, 4) as other:
            table.snapshot()
            while not other.pipe.poll():
                table.snapshot()
            assert other.hear() == "done"
            other.say("end")
            other.join()
