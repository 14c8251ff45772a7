"""A table whose rows write many pages of its index is named, with the memory that would make them fewer."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

import kvstore
from kvstore.memtable import pace
from kvstore.memtable.budget import Merges
from kvstore.process.written import written_bytes
from kvstore.store.advice import PAGES_A_ROW_MAX, advice_of, pages_a_row

MIB = 1 << 20


def merged(rows: int, pages: int, leaf_pages: int = 1_000_000) -> Merges:
    """In ten merges."""
    return Merges(rows, 80 * rows, pages, 10, leaf_pages)


def test_rows_that_are_far_apart_write_a_page_each_and_close_ones_a_part() -> None:
    assert pages_a_row(1_000_000, 1) == pytest.approx(1, abs=0.001)
    assert pages_a_row(1_000_000, 1_600_000) == pytest.approx(0.5, abs=0.01)
    assert pages_a_row(1000, 1_000_000) == pytest.approx(0.001)


def test_advice_says_what_was_counted_and_what_to_set() -> None:
    advice = advice_of("t", [merged(8_000_000, 6_400_000)], None, counted=True)
    assert advice == (
        "A row of table t wrote 0.80 pages of the index, which has 1000000 leaves: memtables were merged at 800000"
        " rows. Where the table is written, open the store with memtable_bytes=335544320: then it is about 0.42."
    )


def test_there_is_no_advice_where_nothing_was_counted_or_rows_write_few_pages() -> None:
    for buckets in ([], [Merges()], [merged(1000, int(1000 * PAGES_A_ROW_MAX))]):
        assert advice_of("t", buckets, None, counted=True) is None


def test_memory_that_a_table_has_already_is_not_advised() -> None:
    large_rows = Merges(5500, 10_000 * 5500, 16_500, 11, 21)  # three pages each, which are no leaves
    assert advice_of("t", [large_rows], None, counted=True) is None
    entries_too = Merges(1_000_000, 140 * MIB, 3_000_000, 2, 100_000)
    assert advice_of("t", [entries_too], None, counted=True) is None


def test_memory_that_the_machine_has_not_is_not_advised() -> None:
    buckets = [merged(8_000_000, 6_400_000)]
    limited = advice_of("t", buckets, 500 * MIB, counted=True)
    assert limited is not None
    assert f"memtable_bytes={192 * MIB}:" in limited
    assert advice_of("t", buckets, 100 * MIB, counted=True) is None


def written(path: Path, keys: list[int]) -> list[str]:
    """The advice of a store after rows were written in an order, with a memory of about 500 rows."""
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.binary(64))])
    with kvstore.open(path, memtable_bytes=100_000, durability="none", commit_wait_ms=3_600_000) as store:
        table = store.create_table("t", schema, primary_key="k")
        for first in range(0, len(keys), 200):
            table.upsert([{"k": key, "v": bytes(64)} for key in keys[first : first + 200]])
        return store.health().advice


def test_a_process_that_writes_keys_in_random_order_gets_advice(tmp_path: Path) -> None:
    keys = random.Random(1).sample(range(1 << 40), 30_000)
    assert written(tmp_path / "sorted", sorted(keys)) == []
    advice = written(tmp_path / "random", keys)
    assert [each.startswith("A row of table t wrote ") for each in advice] == [True] * (written_bytes() is not None)
    with mock.patch.object(pace, "written_bytes", return_value=None):  # the system does not count
        assert written(tmp_path / "uncounted", keys) == []
