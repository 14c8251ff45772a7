"""Small transactions that wait at once are decided together; a refused one, or a full disk, stops no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.commit.coordinator import Commits
from kvstore.errors import NotAcknowledged, StoreError, StoreFull, StoreLocked, TransactionConflict, UniqueViolation
from kvstore.log.log import Log
from kvstore.meta.journal import Journal
from kvstore.transaction.together import Work
from logformat.catalog.edits import BeginCommit
from logformat.ids import TableId
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

KEYS = 8
HANG_SECONDS = 30.0


@pytest.fixture
def store(store_path: Path) -> Iterator[kvstore.Store]:
    with kvstore.open(store_path) as store:
        for name, buckets in {"a": 1, "b": 2}.items():
            table = store.create_table(name, {"k": "int64", "v": "int64"}, primary_key="k", buckets=buckets)
            table.upsert([{"k": k, "v": 0} for k in range(KEYS)])
        add(store, 0, 0)  # the name under which they are counted is made once
        yield store
        assert store.check().ok


def add(store: kvstore.Store, key: int, change: int = 1) -> None:
    """Add to the value of a key in both tables."""
    with store.transaction() as tx:
        for name in "ab":
            row = tx.get(name, key)
            assert row is not None
            tx.upsert(name, {**row, "v": row["v"] + change})


def add_to(store: kvstore.Store, name: str) -> None:
    """Change the first table, and another one."""
    with store.transaction() as tx:
        tx.upsert("a", {"k": 0, "v": 0})
        tx.upsert(name, {"k": 0})


def values(store: kvstore.Store) -> dict[str, dict[int, int]]:
    with store.snapshot() as at:
        return {name: {row["k"]: row["v"] for row in rows_of(at[name])} for name in "ab"}


class Held:
    """Holds the first edit that decides transactions until so many others wait, and counts how many each decides."""

    def __init__(self, store: kvstore.Store, others: int) -> None:
        self.decided: list[int] = []
        self._waiting = store.runtime.open_table(store.runtime.definition("a")).commits.waiting
        self._others = others
        self._append = Journal.append

    def append(self, journal: Journal, decide: Callable[..., Any], **given: Any) -> Any:
        if not self.decided:
            self.decided.append(0)
            wait_until(lambda: len(self._waiting) == self._others)
            self.decided.clear()
        number = len(self.decided)
        self.decided.append(0)

        def counted(state: Any) -> Any:
            payloads = decide(state)
            begun = {each.commit_id.partition("-")[2] for each in payloads if isinstance(each, BeginCommit)}
            self.decided[number] = len(begun)
            return payloads

        return self._append(journal, counted, **given)


def together(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, *works: Callable[[], object]
) -> tuple[list[BaseException | None], list[int]]:
    """Do works in threads so that all but the first wait at once; returns their errors, and what each edit decided."""
    held = Held(store, len(works) - 1)
    errors: list[BaseException | None] = [None] * len(works)

    def run(number: int) -> None:
        try:
            works[number]()
        except (StoreError, MemoryError) as error:
            errors[number] = error

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", lambda journal, decide, **given: held.append(journal, decide, **given))
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(works))]
        threads[0].start()
        wait_until(lambda: held.decided == [0])
        for each in threads[1:]:
            each.start()
        for each in threads:
            each.join(HANG_SECONDS)
            assert not each.is_alive()
    return errors, held.decided


def test_those_that_wait_share_an_edit(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    errors, decided = together(store, monkeypatch, *(lambda key=key: add(store, key) for key in range(KEYS)))
    assert errors == [None] * KEYS
    assert decided == [1, KEYS - 1]
    assert values(store) == {name: dict.fromkeys(range(KEYS), 1) for name in "ab"}
    ids = [
        {batch.origin.transaction for batch in log.batches(log.start(), log.end())} - {None}
        for log in (store[name].bucket(bucket).log for name, bucket in (("a", 0), ("b", 0), ("b", 1)))
    ]
    assert len(ids[0]) == KEYS + 1
    assert ids[0] == ids[1] == ids[2]


def test_one_that_has_read_what_another_changes_is_a_conflict(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, decided = together(store, monkeypatch, *(lambda key=key: add(store, key) for key in (0, 1, 1, 2)))
    assert [type(each) for each in errors].count(TransactionConflict) == 1
    assert sum(decided) == 3
    assert values(store) == {name: dict.fromkeys(range(KEYS), 0) | {0: 1, 1: 1, 2: 1} for name in "ab"}


def test_one_that_is_refused_stops_no_other(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    people = store.create_table("people", {"k": "int64", "name": "string"}, primary_key="k")
    store.create_index("people", "by_name", ["name"], unique=True)

    def named(key: int, name: str) -> None:
        with store.transaction() as tx:
            tx.upsert("a", {"k": key, "v": 5})
            tx.upsert("people", {"k": key, "name": name})

    named(0, "Ana")
    names = {1: "Bo", 2: "Cy", 3: "Bo", 4: "Di"}
    errors, _ = together(store, monkeypatch, *(lambda key=key: named(key, names[key]) for key in names))
    assert sorted(type(each).__name__ for each in errors if each) == [UniqueViolation.__name__]
    refused = 1 + next(number for number, each in enumerate(errors) if each)
    kept = {0: "Ana", **{key: name for key, name in names.items() if key != refused}}
    assert {row["k"]: row["name"] for row in rows_of(people)} == kept
    assert {key for key, value in values(store)["a"].items() if value == 5} == set(kept)


class Impatient:
    """A transaction whose thread does not get its turn: it gives up once a condition holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gives_up: Callable[[Commits], bool]) -> None:
        self.thread: threading.Thread | None = None
        turn_here = Commits.turn_here

        @contextmanager
        def turn(commits: Commits, *, waits: bool = True) -> Iterator[Any]:
            if waits and threading.current_thread() is self.thread:
                wait_until(lambda: gives_up(commits))
                raise StoreLocked("Another commit takes too long.")
            with turn_here(commits, waits=waits) as found:
                yield found

        monkeypatch.setattr(Commits, "turn_here", turn)

    def of(self, work: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            self.thread = threading.current_thread()
            return work()

        return run


def test_one_that_gives_up_after_another_thread_took_it(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the answer of the thread that took it: no error of a transaction that was committed."""
    impatient = Impatient(monkeypatch, lambda commits: not commits.waiting)
    errors, decided = together(
        store, monkeypatch, lambda: add(store, 0), lambda: add(store, 1), impatient.of(lambda: add(store, 2))
    )
    assert decided == [1, 2]
    assert errors == [None] * 3
    assert values(store) == {name: dict.fromkeys(range(KEYS), 0) | {0: 1, 1: 1, 2: 1} for name in "ab"}


def test_one_that_gives_up_while_another_thread_looks_at_it(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    impatient = Impatient(monkeypatch, lambda _: looked.is_set())
    other = store.create_table("other", {"k": "int64"}, primary_key="k")
    add_to(store, other.name)
    key = Work.key.fget
    assert key is not None

    def slow_key(work: Work) -> list[TableId]:
        found: list[TableId] = key(work)
        thread = impatient.thread
        if thread not in (None, threading.current_thread()) and found[-1] == store.runtime.definition(other.name).id:
            looked.set()
            thread.join(1.0)  # type: ignore[union-attr]
        return found

    monkeypatch.setattr(Work, "key", property(slow_key))
    errors, _ = together(
        store,
        monkeypatch,
        lambda: add(store, 0),
        lambda: add(store, 1),
        impatient.of(lambda: add_to(store, other.name)),
    )
    assert looked.is_set()
    assert [type(each) for each in errors] == [NoneType, NoneType, StoreLocked]
    add_to(store, other.name)


def test_one_that_fails_while_it_takes_others(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not left waiting, also if it has no memory for all of them."""
    read, calls = Work.read, [0]

    def failing(work: Work) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise MemoryError
        return read(work)

    monkeypatch.setattr(Work, "read", failing)
    errors, _ = together(store, monkeypatch, *(lambda key=key: add(store, key) for key in range(4)))
    assert sorted(type(each).__name__ for each in errors if each) == [MemoryError.__name__]
    failed = next(number for number, each in enumerate(errors) if each)
    assert values(store)["a"] == {key: int(key < 4 and key != failed) for key in range(KEYS)}


def test_a_disk_that_is_full_before_the_decision(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:

        def append(*_: object, **__: object) -> None:
            raise StoreFull("no space")

        patched.setattr(Journal, "append", append)
        with pytest.raises(StoreFull) as caught:
            add(store, 1)
        assert "committed" not in caught.value.where
    assert values(store)["a"][1] == 0
    add(store, 1)
    assert [values(store)[name][1] for name in "ab"] == [1, 1]


@pytest.mark.parametrize("call", range(3))
def test_a_disk_that_is_full_after_the_decision(
    store: kvstore.Store, store_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """What is decided is there as soon as there is room, and no reader sees a part of it before."""
    appended, calls = Log.append, [0]
    with monkeypatch.context() as patched:

        def append(log: Log, *batches: Any, **given: Any) -> None:
            calls[0] += 1
            if calls[0] > call:
                raise StoreFull("no space")
            appended(log, *batches, **given)

        patched.setattr(Log, "append", append)
        with pytest.raises(NotAcknowledged, match=r"is committed; do not run it again.*no space") as caught:
            add(store, 1)
        assert caught.value.where["committed"] is True
    with kvstore.open(store_path) as again:
        assert [values(again)[name][1] for name in "ab"] == [1, 1]
    add(store, 1)
    assert [values(store)[name][1] for name in "ab"] == [2, 2]


def is_left(handle: BucketHandle) -> bool:
    return handle.engine is None


@pytest.mark.parametrize("is_small", [True, False])
def test_a_bucket_that_is_handed_over_waits_for_the_transaction_and_it_not_for_the_bucket(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    """What hands a bucket over holds its handle until the turn ends, so no read in the turn may need the handle."""
    handles = [each for name in "ab" for each in store.runtime.open_table(store.runtime.definition(name)).handles]
    verify = Work.verify
    leaving: list[threading.Thread] = []

    def late(work: Work, *given: Any) -> None:
        for handle in handles if not leaving else ():
            leaving.append(threading.Thread(target=handle.stop_writing, daemon=True))
            leaving[-1].start()
            wait_until(partial(is_left, handle))
        verify(work, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Work, "verify", late)
        if not is_small:
            patched.setattr(Work, "is_small", False)
        writer = threading.Thread(target=add, args=(store, 1), daemon=True)
        writer.start()
        writer.join(HANG_SECONDS)
        assert not writer.is_alive()
        for each in leaving:
            each.join(HANG_SECONDS)
            assert not each.is_alive()
    assert len(leaving) == 3
    assert {name: rows[1] for name, rows in values(store).items()} == {"a": 1, "b": 1}
