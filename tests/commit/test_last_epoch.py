"""The last epoch that was applied under a name."""

from __future__ import annotations

import pytest

import kvstore
from kvstore.errors import InvalidRequest, StoreClosed, StoreError
from tests.conftest import OpenStore


@pytest.mark.parametrize("buckets", [1, 3])
def test_the_last_epoch_is_known_in_any_process_and_after_a_restart(open_store: OpenStore, buckets: int) -> None:
    with open_store() as store:
        table = store.create_table("t", {"k": "int64"}, "k", buckets=buckets)
        other = kvstore.open(store.path, read_only=True)
        rows = kvstore.Changes.of([("upsert", {"k": 1})], table.schema)
        assert "w" not in table.writers
        for epoch in (7, 8, 9):
            table.apply_epoch(rows, "w", epoch)
            assert table.writers["w"].last_epoch == epoch
            assert other["t"].writers["w"].last_epoch == epoch
        table.apply_epoch(rows, "w", 8)
        assert table.writers["w"].last_epoch == 9
        table.apply_epoch(rows, "w", 3, run="another", takeover=True)
        assert table.writers["w"].last_epoch == 3
        other.close()
    for options in ({"read_only": True}, {}):
        with open_store(**options) as store:
            known = store["t"].writers["w"]
            assert (known.last_epoch, known.first_epoch) == (3, 3)
        with pytest.raises(StoreClosed):
            assert known.last_epoch


def test_a_writer_that_counts_no_epochs_has_none(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64"}, "k", merge_engine=kvstore.Aggregate({}), buckets=2)
    with table.writer("batches") as writer:
        writer.upsert({"k": 1})
    assert table.writers["batches"].last_epoch is None


def test_a_refused_epoch_is_not_the_last(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64", "n": "int8"}, "k", merge_engine=kvstore.Aggregate({"n": "sum"}))
    large = kvstore.Changes.of([("upsert", {"k": 1, "n": 100})], table.schema)
    table.apply_epoch(large, "w", 0)
    with pytest.raises(StoreError):
        table.apply_epoch(large, "w", 1)
    assert table.writers["w"].last_epoch == 0
    with pytest.raises(StoreError):
        table.apply_epoch(large, "other", 0)
    assert table.writers["other"].last_epoch is None
    with pytest.raises(InvalidRequest):
        table.apply_epoch(large, "other", -1)
