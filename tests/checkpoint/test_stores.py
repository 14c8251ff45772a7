"""Checkpoints of a whole store: when they begin, what an open then reads, and tables made by several processes."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

import kvstore
from kvstore.checkpoint.controller import Checkpoint
from kvstore.errors import StoreClosed, Unavailable, UnsupportedOperation
from logformat import paths
from logformat.catalog import edits
from tests.conftest import OpenStore
from tests.store.helpers import Program
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])

DDL = """
store = kvstore.open(path, edits_per_journal=4)
schema = pa.schema([pa.field("k", pa.int64(), False)])
me = sys.stdin.readline().strip()
for number in range(12):
    name = f"{me}{number}"
    store.create_table(name, schema, "k").upsert({"k": number})
    store.add_columns(name, [pa.field(me, pa.int8())])
    if number % 3 == 2:
        store.drop_table(f"{me}{number - 1}")
    if number in (3, 7):
        print("on my way")
print("done")
sys.stdin.readline()
print(*store.list_tables())
store.close()
"""


def checkpoint(store: kvstore.Store) -> Checkpoint:
    """One, after those that others make just now."""
    while True:
        try:
            return store.checkpoint()
        except Unavailable:
            time.sleep(0.05)


def test_two_processes_make_tables_at_once_while_checkpoints_are_made(open_store: OpenStore, store_path: Path) -> None:
    store = open_store(edits_per_journal=4)
    with Program(store_path, DDL) as one, Program(store_path, DDL) as two:
        for name, program in (("a", one), ("b", two)):
            assert program.process.stdin is not None
            program.process.stdin.write(f"{name}\n")
            program.process.stdin.flush()
        done = []
        for word in ("on my way", "on my way", "done"):
            assert [one.line(), two.line()] == [word, word]
            done.append(checkpoint(store))
        expected = sorted(f"{name}{number}" for name in "ab" for number in range(12) if number not in (1, 4, 7, 10))
        for program in (one, two):
            program.go_on()
            assert program.line().split() == expected
    assert store.list_tables() == expected
    assert done[-1].txid == 2 * (24 + 4)
    store.new_writer_id()
    checkpoint(store)
    assert store.health().segments[0] > 50
    for name in expected:
        table = store.table(name)
        assert table.schema.names == ["k", name[0]]
        assert rows_of(table) == [{"k": int(name[1:]), name[0]: None}]


def test_an_open_reads_the_image_and_the_edits_after_it(open_store: OpenStore, store_path: Path) -> None:
    store = open_store()
    store.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": 2})
    for _ in range(50):
        store.new_writer_id()
    store.checkpoint()
    for _ in range(3):
        store.new_writer_id()
    store.close()
    with mock.patch("kvstore.meta.journal.edits.decode", side_effect=edits.decode) as decode:
        with kvstore.open(store_path, read_only=True) as opened:
            assert rows_of(opened.table("t")) == [{"k": 1, "v": 2}]
        assert decode.call_count == 3


def test_a_store_that_is_written_has_its_checkpoints_made(open_store: OpenStore, store_path: Path) -> None:
    store = open_store(edits_per_journal=10)
    store.create_table("t", SCHEMA, "k")
    for _ in range(9):
        store.new_writer_id()
    store.close()  # waits for it
    assert [path.name for path in (store_path / paths.IMAGES).glob("image.*")] == [f"image.{10:020d}"]


def test_a_process_that_may_not_write_begins_none(open_store: OpenStore, store_path: Path) -> None:
    store = open_store()
    with kvstore.open(store_path, read_only=True) as reader, pytest.raises(UnsupportedOperation):
        reader.checkpoint()
    store.close()
    with pytest.raises(StoreClosed):
        store.checkpoint()
    with pytest.raises(StoreClosed):
        store.health()


def test_health_of_a_new_store(open_store: OpenStore) -> None:
    health = open_store().health()
    assert health
    assert (health.txid, health.images, health.segments, health.edits_behind_image) == (0, [], [], 0)
