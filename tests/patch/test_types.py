"""Histories, selective undo and patches of every type of key and column."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.errors import Conflict
from kvstore.testing import strategies
from logformat.rows.record import RecordCodec


def stored(rows: pa.Table) -> list[bytes]:
    columns = [pa.concat_arrays([pa.array([], column.type), *column.chunks]) for column in rows.columns]
    return RecordCodec(rows.schema.types).encode_whole(columns).to_list()


def restores(store: kvstore.Store, path: Path, batches: list[pa.RecordBatch], key: list[str], buckets: int) -> None:
    """Undo what one writer and then what everyone did, each as a patch that was saved."""
    table = store.create_table("t", batches[0].schema, key, buckets=buckets)
    table.upsert(batches[0])
    before = stored(table.to_arrow())
    table.apply_epoch(kvstore.Changes.upserts(batches[1]), writer="mistake", epoch=0)
    later = kvstore.Patch.of(table, kvstore.Changes.deletes(batches[1].select(key), table.schema))
    if len(batches[1]):
        patch = kvstore.Patch.of(table, table.undo("earliest", writer="mistake", epoch=0))
        patch.save(path)
        assert str(kvstore.Patch.load(path)) == str(patch)
        kvstore.Patch.load(path).apply(table)
        assert stored(table.to_arrow()) == before
        if len(patch.changes):
            with pytest.raises(Conflict, match="Rows have changed"):
                later.check(table)
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    table.upsert(batches[2])
    kvstore.Patch.of(table, table.undo(ends)).apply(table)
    assert stored(table.to_arrow()) == before
    store.drop_table("t")


@given(st.data())
@settings(max_examples=8)
def test_a_patch_restores_rows_of_every_type(store: kvstore.Store, tmp_path: Path, data: st.DataObject) -> None:
    key = data.draw(strategies.schemas(st.sampled_from(strategies.KEY_TYPES), columns_max=2))
    others = data.draw(strategies.schemas())
    fields = [field.with_nullable(False) for field in key]
    schema = pa.schema([*fields, *(field for field in others if field.name not in key.names)])
    batches = [data.draw(strategies.rows(schema)) for _ in range(3)]
    restores(store, tmp_path / "patch", batches, key.names, data.draw(st.sampled_from([1, 2])))


def test_a_decimal_of_a_negative_scale_has_a_history(store: kvstore.Store) -> None:
    schema = pa.schema([pa.field("k", pa.decimal128(20, -3), False), pa.field("v", pa.int8())])
    table = store.create_table("t", schema, "k")
    table.upsert([{"k": Decimal(1000), "v": 1}, {"k": Decimal(2000), "v": 2}])
    assert [each["after"]["v"] for each in table.history(Decimal(2000)).to_pylist()] == [2]
