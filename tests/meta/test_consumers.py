"""Consumers in the catalog's state: what the edits say, whatever else they are about and whenever they are replayed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from kvstore.meta.consumers import NamedConsumer, TableConsumers, moved_back
from kvstore.meta.state import CatalogState
from logformat.catalog import edits
from logformat.catalog.edits import CreateTable, DropConsumer, DropTable, Edit, Payload, SetConsumer, TableOptions
from logformat.ids import BucketId, Epoch, Offset, TableId, Txid

TABLES = [TableId(1), TableId(2), TableId(3)]
"""The last is never created."""
NAMES = ["a", "b", "lease"]

tables = st.sampled_from(TABLES)
times = st.integers(0, 20)
steps = st.one_of(
    st.builds(
        SetConsumer,
        table_id=tables,
        name=st.sampled_from(NAMES),
        offsets=st.lists(st.integers(0, 9).map(Offset), min_size=2, max_size=2),
        until_ms=st.none() | times,
    ),
    st.builds(DropConsumer, table_id=tables, name=st.sampled_from(NAMES)),
    st.builds(DropTable, table_id=tables),
)


def created(table: TableId) -> CreateTable:
    return CreateTable(
        table_id=table, name=f"t{table}", columns=[], primary_key=None, buckets=2, options=TableOptions()
    )


def after(state: CatalogState, payload: Payload, time_ms: int = 0) -> CatalogState:
    """With one more edit, as it is read back."""
    edit = Edit(txid=Txid(state.txid + 1), epoch=Epoch(0), time_ms=time_ms, payload=payload)
    return state.after(edits.decode(edits.encode(edit)))


def begun() -> CatalogState:
    return after(after(CatalogState(), created(TABLES[0])), created(TABLES[1]))


@given(st.lists(st.tuples(steps, times), max_size=25))
def test_the_state_is_what_the_edits_say(history: list[tuple[Any, int]]) -> None:
    state, there = begun(), set(TABLES[:2])
    expected: dict[tuple[TableId, str], tuple[list[Offset], int | None]] = {}
    for payload, time_ms in history:
        state = after(state, payload, time_ms)
        of = payload.table_id
        if isinstance(payload, DropTable):
            there.discard(of)
            expected = {key: value for key, value in expected.items() if key[0] != of}
            continue
        if of not in there:
            continue
        for key, (_, until) in list(expected.items()):
            if key[0] == of and until is not None and until <= time_ms:
                del expected[key]
        if isinstance(payload, SetConsumer):
            expected[of, payload.name] = payload.offsets, payload.until_ms
        else:
            expected.pop((of, payload.name), None)
        found = {
            (table, name): (list(consumer.offsets), consumer.until_ms)
            for table, consumers in state.consumers.items()
            for name, consumer in consumers.named.items()
        }
        assert found == expected
        assert state.consumers.keys() <= there


@given(st.lists(st.tuples(steps, times), max_size=12), times)
def test_a_lease_that_is_over_has_no_position(history: list[tuple[Any, int]], now_ms: int) -> None:
    state = begun()
    for payload, time_ms in history:
        state = after(state, payload, time_ms)
    for table in TABLES:
        consumers = state.consumers_of(table)
        counted = [each for each in consumers.named.values() if each.until_ms is None or each.until_ms > now_ms]
        for bucket in (0, 1):
            assert consumers.reader_positions(BucketId(bucket), now_ms) == [each.offsets[bucket] for each in counted]
        lasting = {name: each.offsets for name, each in consumers.named.items() if each.until_ms is None}
        assert consumers.lasting() == {name: {0: first, 1: second} for name, (first, second) in lasting.items()}


def test_leases_do_not_pile_up() -> None:
    state = begun()
    for number in range(100):
        lease = SetConsumer(table_id=TABLES[0], name=f"{number}", offsets=[Offset(0)] * 2, until_ms=number + 3)
        state = after(state, lease, number)
        assert len(state.consumers_of(TABLES[0]).named) <= 3
    state = after(state, SetConsumer(table_id=TABLES[0], name="a", offsets=[Offset(1)] * 2), 1000)
    assert state.consumers_of(TABLES[0]).named == {"a": NamedConsumer((Offset(1), Offset(1)))}


def test_consumers_move_back_to_the_ends_of_their_buckets_and_no_further() -> None:
    consumers = TableConsumers(
        {
            "after": NamedConsumer((Offset(5), Offset(9)), filter="0a (v > 1)"),
            "before": NamedConsumer((Offset(3), Offset(2))),
            "lease": NamedConsumer((Offset(3), Offset(9)), until_ms=7),
        }
    )
    assert list(moved_back(TableId(1), consumers, {0: 4, 1: 6})) == [
        SetConsumer(
            table_id=TableId(1), name="after", offsets=[Offset(4), Offset(6)], until_ms=None, filter="0a (v > 1)"
        ),
        SetConsumer(table_id=TableId(1), name="lease", offsets=[Offset(3), Offset(6)], until_ms=7),
    ]
    assert [each.offsets for each in moved_back(TableId(1), consumers, {0: 4})] == [[4, 9]]
    assert not list(moved_back(TableId(1), consumers, {}))
