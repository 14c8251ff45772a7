"""Small transactions that wait at once are decided together; a refused one, or a full disk, stops no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.errors import StoreError, StoreFull, TransactionConflict, UniqueViolation
from kvstore.log.log import Log
from kvstore.meta.journal import Journal
from logformat.catalog.edits import BeginCommit
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

KEYS = 8


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
        except StoreError as error:
            errors[number] = error

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", lambda journal, decide, **given: held.append(journal, decide, **given))
        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
        threads[0].start()
        wait_until(lambda: held.decided == [0])
        for each in threads[1:]:
            each.start()
        for each in threads:
            each.join()
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
        with pytest.raises(StoreFull) as caught:
            add(store, 1)
        assert caught.value.where["committed"] is True
    with kvstore.open(store_path) as again:
        assert [values(again)[name][1] for name in "ab"] == [1, 1]
    add(store, 1)
    assert [values(store)[name][1] for name in "ab"] == [2, 2]
