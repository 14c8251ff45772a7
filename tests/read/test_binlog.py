"""The binlog: one row for each change, with the row before and the row after. Any history: test_against_model."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.read import binlog
from kvstore.read.changelog import CHANGE_FIELDS, About
from kvstore.testing.strategies import rows as record_batches
from logformat.ids import BucketId
from tests.support.contents import values_of
from tests.support.tables import binlog_of

INSERT, PREIMAGE, POSTIMAGE, DELETE = range(1, 5)

SCHEMA = pa.schema([pa.field("v", pa.int64()), pa.field("k", pa.string(), False), pa.field("s", pa.string())])


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, primary_key="k")
    table.upsert([{"k": "a", "v": 1, "s": "x"}, {"k": "b", "v": 2, "s": None}])
    table.upsert({"k": "a", "v": None, "s": "y"})
    table.delete("b")
    return table


def test_columns(table: kvstore.Table) -> None:
    (batch,) = table.binlog()
    (changes,) = table.changelog()
    row = pa.struct([pa.field("v", pa.int64()), pa.field("k", pa.string()), pa.field("s", pa.string())])
    assert batch.schema.equals(pa.schema([*list(changes.schema)[:5], pa.field("before", row), pa.field("after", row)]))
    assert batch.select(batch.schema.names[:5]).equals(changes.select(changes.schema.names[:5]).take([0, 1, 3, 4]))
    assert batch.column("before").to_pylist() == [
        None, None, {"v": 1, "k": "a", "s": "x"}, {"v": 2, "k": "b", "s": None}
    ]  # fmt: skip
    assert batch.column("after").to_pylist() == [
        {"v": 1, "k": "a", "s": "x"}, {"v": 2, "k": "b", "s": None}, {"v": None, "k": "a", "s": "y"}, None
    ]  # fmt: skip
    assert batch.column("_change_type").to_pylist() == ["insert", "insert", "update_postimage", "delete"]
    batch.validate(full=True)


def test_columns_are_those_of_the_rows(table: kvstore.Table) -> None:
    whole, some = table.binlog(), table.binlog(columns=["s", "k"])
    for all_of, part in zip(whole, some, strict=True):
        assert part.schema.names == all_of.schema.names
        for name in ("before", "after"):
            assert [field.name for field in part.schema.field(name).type] == ["s", "k"]
            expected = [row and {"s": row["s"], "k": row["k"]} for row in all_of.column(name).to_pylist()]
            assert part.column(name).to_pylist() == expected


def test_ranges_join_without_a_gap_wherever_they_are_cut(table: kvstore.Table) -> None:
    whole = binlog_of(table)
    for cut in range(6):
        assert binlog_of(table, 0, cut) + binlog_of(table, cut) == whole
    assert binlog_of(table, 2, 3) == []
    assert [offset for offset, *_ in binlog_of(table, 3, 4)] == [3]


def test_full_is_the_rows_as_inserts(table: kvstore.Table) -> None:
    assert binlog_of(table, "full") == [(4, "insert", None, {"v": None, "k": "a", "s": "y"}, 4)]
    assert [batch.column("after").to_pylist() for batch in table.binlog("full", columns="v")] == [[{"v": None}]]
    table.delete("a")
    assert binlog_of(table, "full") == []


def test_a_log_table_has_only_rows_after(store: kvstore.Store) -> None:
    table = store.create_table("log", SCHEMA)
    table.upsert([{"k": "a", "v": 1, "s": None}] * 2)
    row = {"v": 1, "k": "a", "s": None}
    assert binlog_of(table) == [(0, "append", None, row, 0), (1, "append", None, row, 0)]


@given(st.data())
def test_rows_of_every_type(data: st.DataObject) -> None:
    rows = data.draw(record_batches(rows_max=8))
    kinds: list[int] = []
    while len(kinds) < rows.num_rows:
        kinds += data.draw(st.sampled_from([[INSERT], [PREIMAGE, POSTIMAGE], [DELETE]]))
    kinds = kinds[: rows.num_rows]  # maybe without the postimage of the last update
    about = About(BucketId(0), np.arange(len(kinds)), np.array(kinds, np.uint8), 0, 0)
    changes = pa.record_batch(
        [*map(about.column, CHANGE_FIELDS.names), *rows.columns], names=[*CHANGE_FIELDS.names, *rows.schema.names]
    )
    row = pa.struct([field.with_nullable(True) for field in rows.schema])
    schema = pa.schema([*CHANGE_FIELDS, pa.field("before", row), pa.field("after", row)])
    found = list(binlog.binlog_of([changes], schema))
    values = list(zip(*map(values_of, rows.columns), strict=True))
    after = {place: values[place] if kind != DELETE else None for place, kind in enumerate(kinds) if kind != PREIMAGE}
    before = {
        place: values[place] if kinds[place] == DELETE else values[place - 1] if kinds[place] == POSTIMAGE else None
        for place in after
    }
    assert len(found) == bool(after)
    for batch in found:
        batch.validate(full=True)
        assert batch.column("_log_offset").to_pylist() == list(after)
        assert values_of(batch.column("before")) == list(before.values())
        assert values_of(batch.column("after")) == list(after.values())
