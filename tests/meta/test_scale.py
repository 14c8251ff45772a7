"""An edit of the catalog costs as much in a large catalog as in a small one."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from kvstore.meta.persistent_map import IndexedMap, PersistentMap
from kvstore.meta.state import CatalogState
from logformat.catalog.edits import CreateTable, DropConsumer, Edit, OpenWriter, Payload, SetConsumer, TableOptions
from logformat.ids import Epoch, Offset, TableId, Txid, WriterId
from tests.support.calls_made import calls_made

COLUMNS: list[dict[str, object]] = [{"name": "k", "type": "int64", "nullable": False}]
FEW, MANY = 100, 3_200
BYTES_MAX = 16 << 10
"""What an edit may add to the memory of a catalog; a copy of ``MANY`` entries takes more than 100 KiB."""


def after(state: CatalogState, payload: Payload, now_ms: int = 0) -> CatalogState:
    return state.after(Edit(txid=Txid(state.txid + 1), epoch=state.leader_epoch, time_ms=now_ms, payload=payload))


def table(number: int) -> CreateTable:
    return CreateTable(
        table_id=TableId(number),
        name=f"t{number}",
        columns=COLUMNS,
        primary_key=["k"],
        buckets=1,
        bucket_key=None,
        options=TableOptions(),
    )


def writer(number: int) -> OpenWriter:
    return OpenWriter(
        table_id=TableId(1),
        name=f"w{number}",
        writer_id=WriterId(2**62 + number),
        writer_epoch=Epoch(0),
        kind="batches",
    )


def consumer(number: int) -> SetConsumer:
    return SetConsumer(table_id=TableId(1), name=f"c{number}", offsets=[Offset(number)])


def lease(number: int) -> SetConsumer:
    return SetConsumer(table_id=TableId(1), name=f"l{number}", offsets=[Offset(number)], until_ms=number + 10**6)


def consumer_of_another_table(number: int) -> SetConsumer:
    return SetConsumer(table_id=TableId(number), name="c", offsets=[Offset(number)])


def with_tables(count: int) -> CatalogState:
    state = CatalogState()
    for number in range(1, count + 1):
        state = after(state, table(number))
    return state


KINDS: list[Callable[[int], Payload]] = [table, writer, consumer, lease, consumer_of_another_table]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_edit_costs_the_same_in_a_large_catalog(kind: Callable[[int], Payload]) -> None:
    state = with_tables(MANY + 2 if kind is consumer_of_another_table else 1)
    costs = {}
    for number in range(2, MANY + 1):
        if number in (FEW, MANY):
            before = state
            costs[number] = calls_made(lambda: after(before, kind(number)))  # noqa: B023
            tracemalloc.start()
            try:
                state = after(state, kind(number))
                assert tracemalloc.get_traced_memory()[0] < BYTES_MAX
            finally:
                tracemalloc.stop()
        else:
            state = after(state, kind(number))
    assert costs[MANY] < 2 * costs[FEW] + 50
    dropped = after(state, DropConsumer(table_id=TableId(1), name=f"c{FEW}"))
    assert (state.consumers_of(TableId(1)).position(f"c{FEW}") is not None) == (kind is consumer)
    assert dropped.consumers_of(TableId(1)).position(f"c{FEW}") is None


def test_a_batch_of_a_named_writer_is_checked_without_a_look_at_the_others() -> None:
    state = with_tables(1)
    costs = {}
    for number in range(MANY):
        state = after(state, writer(number))
        if number + 1 in (FEW, MANY):
            writers = state.writers_of(TableId(1))
            costs[number + 1] = calls_made(lambda: writers.is_named(WriterId(5)))  # noqa: B023
            writers.check(WriterId(2**62 + number), Epoch(0))
    assert costs[MANY] < 2 * costs[FEW] + 20


class ByValue(IndexedMap[str, Any]):
    __slots__ = ()
    attribute = "real"


@given(st.lists(st.tuples(st.integers(0, 99), st.none() | st.integers()), max_size=200))
def test_a_map_has_what_a_dict_has_and_never_changes(steps: list[tuple[int, int | None]]) -> None:
    expected: dict[int, int] = {}
    found: PersistentMap[int, int] = PersistentMap()
    kept = []
    for key, value in steps:
        if value is None:
            expected.pop(key, None)
            found = found.without(key)
        else:
            expected[key] = value
            found = found.put(key, value)
        kept.append((found, dict(expected)))
    for map_then, then in kept:
        assert map_then == then
        assert then == map_then
        assert len(map_then) == len(then)
        assert sorted(map_then) == sorted(then)
        assert PersistentMap(then) == map_then
    assert found != {**expected, 100: 0}
    assert found.get(100) is None
    assert repr(PersistentMap({1: 2})) == "{1: 2}"


def test_maps_have_one_order_in_all_processes() -> None:
    program = (
        "from kvstore.meta.persistent_map import PersistentMap\n"
        "found = PersistentMap()\n"
        "for number in range(100):\n"
        "    found = found.put(f'name {number}', number)\n"
        "print(*found.without('name 7').values(), *PersistentMap(dict(found)).values())\n"
    )
    orders = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(orders) == 1
    assert len(orders.pop().split()) == 199


class SameHash(int):
    def __hash__(self) -> int:
        return 1


def test_keys_of_one_hash_are_all_kept() -> None:
    found: PersistentMap[SameHash, int] = PersistentMap()
    for number in range(50):
        found = found.put(SameHash(number), number)
    assert {int(key): value for key, value in found.items()} == {number: number for number in range(50)}
    assert len(found.without(SameHash(7))) == 49


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9)), max_size=30))
def test_a_key_is_found_by_its_value(steps: list[tuple[str, int | None]]) -> None:
    expected: dict[str, int] = {}
    found = ByValue()
    for key, value in steps:
        if value is None or value in expected.values():
            expected.pop(key, None)
            found = found.without(key)
        else:
            expected[key] = value
            found = found.put(key, value)
        assert found == expected
        assert {each: found.found(each) for each in range(10)} == {
            each: next((key for key, value in expected.items() if value == each), None) for each in range(10)
        }


def test_values_that_share_an_attribute_after_a_repair_can_still_be_changed() -> None:
    shared = ByValue().put("a", 1).put("b", 1)
    only_a = shared.without("b")
    assert dict(only_a) == {"a": 1}
    assert dict(only_a.put("a", 2)) == {"a": 2}
    assert only_a.put("a", 2).found(2) == "a"
    assert dict(only_a.without("a")) == {}
