"""The order of locks in docs/concurrency.md is the one in which the running code takes them."""

from __future__ import annotations

import ast
import datetime as dt
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
import kvstore.disk.environment
import kvstore.store.runtime
from kvstore.disk.environment import Environment
from tests.support.tables import rows_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "concurrency.md"
ROW = re.compile(r"^\| (\d+) \| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
ASSIGNED = re.compile(r"(?:self\.)?(\w+) = threading\.")
MADE = re.compile(r"threading\.(Lock|RLock|Condition)\((?!self)")
"""A condition that is given a lock is none of its own."""
SIGNALS = {"kvstore/process/calls.py Call._ended"}
LMDB = "kvstore/disk/environment.py Environment.begin_write"
JOURNAL = "kvstore/meta/journal.py Journal._mutex"
OPENING = "kvstore/bucket/handle.py BucketHandle._opening"
TURN = "kvstore/bucket/turn.py Turn._changing"
GATE = "kvstore/bucket/committer.py Committer._gate"
COMMITS = "kvstore/bucket/commit_lock.py CommitLock._threads"
RUNTIMES = "kvstore/store/runtime.py _runtimes_mutex"
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])

Edge = tuple[str, str]


class Recorder:
    """Which locks were taken, and which while another one was held."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.edges: set[Edge] = set()
        # A call that runs in a thread of its own has the context of its caller, and so the locks that its caller holds.
        self._held: ContextVar[tuple[Lock, ...]] = ContextVar("held", default=())

    def note(self, name: str) -> None:
        self.seen.add(name)
        self.edges.update((each.name, name) for each in self._held.get())

    def take(self, lock: Lock) -> None:
        held = self._held.get()
        if lock not in held:  # a lock may be taken again by the thread that has it
            self.note(lock.name)
        self._held.set((*held, lock))

    def let_go(self, lock: Lock) -> None:
        held = list(self._held.get())
        held.remove(lock)
        self._held.set(tuple(held))


class Lock:
    """A lock that reports what is done with it."""

    def __init__(self, real: Any, name: str, recorder: Recorder) -> None:
        self._real = real
        self._recorder = recorder
        self.name = name

    def acquire(self, *args: Any, **given: Any) -> bool:
        taken: bool = self._real.acquire(*args, **given)
        if taken:
            self._recorder.take(self)
        return taken

    def release(self) -> None:
        self._recorder.let_go(self)
        self._real.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Threading:
    """The module ``threading``, with locks that report."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        if name in ("Lock", "RLock"):
            return lambda: Lock(getattr(threading, name)(), creator(), self._recorder)
        return self._condition if name == "Condition" else getattr(threading, name)

    def _condition(self, lock: Any = None) -> threading.Condition:
        return threading.Condition(lock or Lock(threading.RLock(), creator(), self._recorder))


def creator() -> str:
    """File, class and attribute of the lock that the caller of the caller makes."""
    frame = sys._getframe(2)
    path = Path(frame.f_code.co_filename)
    line = path.read_text().splitlines()[frame.f_lineno - 1]
    found = ASSIGNED.search(line)
    assert found, line
    owner = frame.f_code.co_qualname.rpartition(".")[0]
    return f"{path.relative_to(ROOT)} {owner}.{found[1]}"


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Records the locks that kvstore and writer make from now on."""
    recorder = Recorder()
    for name, module in list(sys.modules.items()):
        is_ours = name.partition(".")[0] in ("kvstore", "writer") and name != "kvstore.process.calls"
        if is_ours and getattr(module, "threading", None) is threading:
            monkeypatch.setattr(module, "threading", Threading(recorder))
    for module, name in [(kvstore.store.runtime, "_runtimes_mutex"), (kvstore.disk.environment, "_registry_mutex")]:
        path = Path(str(module.__file__)).relative_to(ROOT)
        monkeypatch.setattr(module, name, Lock(threading.Lock(), f"{path} {name}", recorder))
    begin = Environment.begin_write

    def begin_write(self: Environment) -> Any:
        recorder.note(LMDB)
        return begin(self)

    monkeypatch.setattr(Environment, "begin_write", begin_write)
    return recorder


def order_of(page: str) -> dict[str, int]:
    """The number of each lock in the table of the page."""
    return {f"{path} {name}": int(number) for number, path, name in ROW.findall(page)}


def faults(recorder: Recorder, order: dict[str, int]) -> Iterator[str]:
    """What the page does not say, or says otherwise than the code does."""
    yield from (f"the page lacks {name}" for name in sorted(recorder.seen - order.keys()))
    for outer, inner in sorted(recorder.edges):
        if outer in order and inner in order and order[outer] >= order[inner]:
            yield f"{inner} is taken under {outer}"


def run(path: Path) -> None:
    """A few threads that do most things that a store can do."""
    with kvstore.open(path / "s", journal_sync="NO_SYNC", sync_interval_ms=1) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2, retention=dt.timedelta(hours=1))
        store.create_table("u", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        replica = store.add_replica(str(path / "r"), "r")

        def write() -> None:
            for number in range(4):
                table.upsert([{"k": number, "v": number}, {"k": number + 1, "v": 0}])
                table.delete([{"k": number}])
            with table.writer() as writer:
                writer.upsert([{"k": number, "v": number} for number in range(20)])
                writer.flush()

        def read() -> None:
            for number in range(4):
                table.get({"k": number})
                rows_of(table)
                table.lookup([{"k": number}])
                rows_of(store.table("u"))

        def commit() -> None:
            for epoch in range(3):
                table.apply_epoch(kvstore.Changes.of([("upsert", {"k": epoch, "v": 1})], SCHEMA), "w", epoch)
            store.consumer("c").commit("t", {0: 0, 1: 0})

        def manage() -> None:
            table.snapshot()
            store.checkpoint()
            store.add_columns("u", [pa.field("w", pa.int64())])
            store.create_table("x", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
            store.drop_table("x")
            store.health()

        def ship() -> None:
            for _ in range(2):
                replica.ship()

        def open_and_close() -> None:
            for _ in range(2):
                with kvstore.open(path / "s", read_only=True) as reader:
                    rows_of(reader.table("t"))
            with kvstore.open(path / "o") as other:
                other.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])

        at_once([write, write, read, commit, manage, ship, open_and_close])
        store.flush()
        replica.ship()
    with kvstore.follow(str(path / "r"), path / "c") as follower:
        follower.pull()
        follower.report()
    for place in (path / "s", path / "r"):
        with kvstore.open(place, read_only=True) as reader:
            rows_of(reader.table("t"))


def at_once(works: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result(600)


def made_in_source() -> Iterator[str]:
    """Every lock that a line of kvstore and writer makes."""
    for path in sorted((*ROOT.glob("kvstore/**/*.py"), *ROOT.glob("writer/**/*.py"))):
        yield from (f"{path.relative_to(ROOT)} {name}" for name in locks_of(ast.parse(path.read_text()), ""))


def locks_of(node: ast.AST, owner: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assign) and MADE.match(ast.unparse(child.value)):
            yield (owner + "." if owner else "") + ast.unparse(child.targets[0]).removeprefix("self.")
        # Only forks assign to a name of the module in a function.
        if not isinstance(child, ast.FunctionDef) or owner:
            yield from locks_of(child, child.name if isinstance(child, ast.ClassDef) else owner)


@pytest.fixture(scope="module")
def order() -> dict[str, int]:
    return order_of(PAGE.read_text())


def test_locks_are_taken_in_the_order_of_the_page(recorder: Recorder, tmp_path: Path, order: dict[str, int]) -> None:
    run(tmp_path)
    assert list(faults(recorder, order)) == []
    # Were two rows of the page swapped, or one missing, this would fail.
    for outer, inner in sorted(recorder.edges):
        swapped = order | {outer: order[inner], inner: order[outer]}
        assert f"{inner} is taken under {outer}" in list(faults(recorder, swapped))
    for name in recorder.seen:
        shorter = {each: number for each, number in order.items() if each != name}
        assert f"the page lacks {name}" in list(faults(recorder, shorter))
    # Those that the page explains were seen.
    assert {(JOURNAL, LMDB), (OPENING, GATE), (GATE, TURN), (RUNTIMES, OPENING), (COMMITS, JOURNAL)} <= recorder.edges
    assert all((JOURNAL, name) not in recorder.edges for name in order if "/replica/" in name)


def test_the_page_lists_every_lock_of_the_source(order: dict[str, int]) -> None:
    assert sorted(order) == sorted({*made_in_source(), LMDB} - SIGNALS)
    assert sorted(order.values()) == list(range(1, len(order) + 1))


def test_a_lock_under_itself_is_a_fault(order: dict[str, int]) -> None:
    """Two buckets have each a lock of one name; no thread takes both."""
    recorder = Recorder()
    first, second = Lock(threading.Lock(), TURN, recorder), Lock(threading.Lock(), TURN, recorder)
    with first, second:
        pass
    assert list(faults(recorder, order)) == [f"{TURN} is taken under {TURN}"]
