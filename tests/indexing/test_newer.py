"""Rows that no merge has moved yet are found by entries, which are made once of each layer, and count as memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.errors import UniqueViolation
from kvstore.index.index import Layer
from kvstore.indexing import newer, unique
from kvstore.memtable.run import Run
from tests.conftest import OpenStore
from tests.support.processes import Child, Pipe

COLUMNS = {"id": "int64", "mail": "string", "age": "int32"}
BY_HAND: dict[str, Any] = {"commit_wait_ms": 600_000, "commit_idle_ms": 600_000}
"""Nothing is merged before a test says so."""
COUNT = 20_000


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns how many rows of layers entries were made of since its last call."""
    counted = [0]
    made = newer.entries_of_layer

    def count(layer: Layer, *others: Any) -> Any:
        counted[0] += len(list(layer.items()))
        return made(layer, *others)

    def since() -> int:
        found, counted[0] = counted[0], 0
        return found

    monkeypatch.setattr(newer, "entries_of_layer", count)
    return since


def ids(table: kvstore.ReadTable, **sought: Any) -> list[int]:
    found: list[int] = table.find(**sought).column("id").to_pylist()
    return found


def made(number: int, mail: str = "m") -> dict[str, Any]:
    return {"id": number, "mail": f"{mail}{number}", "age": number // 10}


def test_each_layer_is_read_once_for_each_index(open_store: OpenStore, rows_read: Callable[[], int]) -> None:
    table = open_store(**BY_HAND).create_table("t", COLUMNS, "id", indexes={"by_mail": "mail", "by_age": "age"})
    table.upsert(list(map(made, range(COUNT))))
    for number in range(0, COUNT, 5000):
        assert ids(table, mail=f"m{number}") == [number]
        assert table.find_one(mail=f"m{number}") == made(number)
        assert ids(table, mail=[f"m{each}" for each in range(number, number + 30)]) == list(range(number, number + 30))
        assert ids(table, age=(number // 10, number // 10 + 1)) == list(range(number, number + 20))
    assert rows_read() == 2 * COUNT
    table.upsert([made(3, "other"), made(COUNT)])
    table.delete([4])
    assert ids(table, mail=[f"m{each}" for each in range(20)]) == [0, 1, 2, *range(5, 20)]
    assert ids(table, age=(0, 0)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert table.find_one(mail="other3") == made(3, "other")
    assert 0 < rows_read() < 20, "only those that came since"
    table.flush()
    assert ids(table, mail=["other3", "m3", "m4", "m5"]) == [3, 5]
    assert rows_read() == 0


def test_columns_that_exchange_names_keep_their_entries(open_store: OpenStore) -> None:
    store = open_store(**BY_HAND)
    table = store.create_table("t", {"id": "int64", "a": "string", "b": "string"}, "id", indexes={"i": "a", "j": "b"})
    table.upsert({"id": 1, "a": "x", "b": "y"})
    assert ids(table, a="x") == ids(table, b="y") == [1]
    store.rename_columns("t", {"a": "b", "b": "a"})
    table = store.table("t")
    assert ids(table, b="x") == ids(table, a="y") == [1]
    assert ids(table, a="x") == ids(table, b="y") == []


def test_entries_move_with_nulls_and_with_numbers_that_are_none(open_store: OpenStore) -> None:
    columns = {"id": "int64", "mail": "string", "score": "float64"}
    store = open_store(**BY_HAND)
    table = store.create_table("t", columns, "id", indexes={"by_mail": "mail", "by_both": ["score", "mail"]})
    values = [(None, None), ("a", 0.0), ("a", -0.0), (None, float("nan")), ("b", float("nan")), ("b", None), None]
    for mail_and_score in [*values, *reversed(values)]:
        if mail_and_score is None:
            table.delete([1])
        else:
            table.upsert({"id": 1, "mail": mail_and_score[0], "score": mail_and_score[1]})
        table.flush()
        assert store.check().findings == []
        mail = None if mail_and_score is None else mail_and_score[0]
        for sought in ("a", "b", None):
            assert ids(table, mail=sought) == ([1] if mail_and_score is not None and mail == sought else [])


def write_and_wait(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path, **BY_HAND) as store:
        store.table("t").upsert(list(map(made, range(COUNT))))
        store.table("t").upsert([made(number, "n") for number in range(10)])
        pipe.send(None)
        pipe.recv()


def test_a_recovered_tail_is_in_no_dict_of_a_unique_index(
    open_store: OpenStore, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(**BY_HAND) as store:
        store.create_table("t", COLUMNS, "id")
        store.create_index("t", "by_mail", "mail", unique=True)
    with Child(write_and_wait, store_path) as child:
        child.pipe.recv()
        child.kill()
    noted = [0]
    codes = unique.codes_of_rows

    def count(definition: Any, index: Any, rows: Any) -> Any:
        noted[0] += len(rows)
        return codes(definition, index, rows)

    monkeypatch.setattr(unique, "codes_of_rows", count)
    store = open_store(**BY_HAND)
    table = store.table("t")
    for number in (0, 11, COUNT - 1):
        mail = made(number, "n" if number < 10 else "m")["mail"]
        with pytest.raises(UniqueViolation) as found:
            table.upsert([made(COUNT), {"id": COUNT + 1, "mail": mail, "age": 1}])
        assert (found.value.value, found.value.key) == (mail, number)
    table.upsert([made(COUNT, "m5 ") | {"mail": "m5"}, made(11, "free"), made(COUNT + 1) | {"mail": "m11"}])
    assert noted[0] < 100
    assert ids(table, mail=["m5", "n5", "m11"]) == [5, COUNT, COUNT + 1]
    assert store.metrics()["kvstore_memtable_bytes"]["t"] > COUNT * 80, "entries count as memory, too"
    table.flush()
    assert store.check().findings == []


def test_what_several_threads_make_of_a_layer_is_counted_once(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_store(**BY_HAND).create_table("t", COLUMNS, "id", indexes={"by_mail": "mail"})
    table.upsert(list(map(made, range(COUNT))))
    memtable, real, all_make = table.bucket(0).handle.memtable(), newer.entries_of_layer, threading.Barrier(4)
    assert memtable is not None

    def together(*given: Any) -> Any:
        all_make.wait(60)
        return real(*given)

    before = memtable.size
    monkeypatch.setattr(newer, "entries_of_layer", together)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda number: ids(table, mail=f"m{number}"), range(4))) == [[n] for n in range(4)]
    (_, kept), *_ = memtable.runs()
    (run,) = (each for each in kept.values() if isinstance(each, Run))
    assert memtable.size == before + run.size
