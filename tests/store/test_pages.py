"""LMDB files are looked at before LMDB is: whole ones pass whatever was done to them, damaged ones never reach it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import lmdb
import pyarrow as pa
import pytest

import kvstore
from kvstore.disk import pages
from kvstore.errors import CorruptData, CorruptImage

PAGE = 4096
TRANSACTION = 16 + 128
"""Where in a meta page the number of its transaction stands."""


def churned(directory: Path, *, seed: int = 1, commits: int = 40) -> Path:
    """A file after inserts, deletes and values of all sizes, verified after each commit."""
    random = Random(seed)
    data = directory / "data.mdb"
    with lmdb.open(str(directory), map_size=1 << 28, max_dbs=4) as environment:
        pages.verify(data, all_pages=True)
        for commit in range(commits):
            with environment.begin(write=True) as transaction:
                database = environment.open_db(f"{commit % 2}".encode(), transaction) if commit % 5 == 4 else None
                for _ in range(150):
                    key = b"\2" + random.randbytes(random.choice((2, 8, 90)))
                    transaction.put(key, bytes(random.choice((0, 9, 48, 700, 9000))), db=database)
                if commit % 6 == 3:
                    with transaction.cursor() as cursor:
                        keys = [key for key in cursor.iternext(values=False) if len(key) > 1][
                            :: random.choice((1, 2, 3))
                        ]
                    for key in keys:
                        transaction.delete(key)
            pages.verify(data, all_pages=True)
    return data


def test_whatever_lmdb_writes_passes(tmp_path: Path) -> None:
    assert churned(tmp_path).stat().st_size > 100 * PAGE


@pytest.mark.parametrize("meta", [0, 1])
def test_no_bit_of_a_transaction_number_passes_in_a_file_of_any_size(tmp_path: Path, meta: int) -> None:
    """Two steps back or forth would make the commit before the last one the last, whole and outdated."""
    data = churned(tmp_path, commits=6)
    whole = data.read_bytes()
    for bit in range(64):
        damaged = bytearray(whole)
        damaged[meta * PAGE + TRANSACTION + bit // 8] ^= 1 << bit % 8
        data.write_bytes(damaged)
        with pytest.raises(CorruptData):
            pages.verify(data, all_pages=False)


@pytest.mark.parametrize("sizes", [(9000, 5000), (9000, 2500), (5000, 20_000, 3000), (20_000, 10), (10, 9000, 8990)])
def test_a_large_value_that_is_replaced_before_it_is_committed(store_path: Path, sizes: tuple[int, ...]) -> None:
    """LMDB leaves the shorter one in the pages of the longer."""
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.binary())])
    values = [Random(size).randbytes(size) for size in sizes]
    with kvstore.open(store_path, commit_idle_ms=60_000, commit_wait_ms=60_000) as store:
        table = store.create_table("t", schema, primary_key="k")
        for value in values:
            table.upsert([{"k": 1, "s": value}, {"k": 2, "s": b"2"}])
        assert store.check()
    pages.verify(store_path / "tables/1/0/index/data.mdb", all_pages=True)
    with kvstore.open(store_path, read_only=True) as store:
        assert store.table("t").scan().read_all()["s"].to_pylist() == [values[-1], b"2"]
        assert store.table("t").get(1) == {"k": 1, "s": values[-1]}
        assert store.check()


def test_a_power_cut_may_take_a_meta_page_that_was_not_synced(tmp_path: Path) -> None:
    """Without a sync of meta pages: the one of the last commit is lost, and the next had begun to write its pages."""
    (live := tmp_path / "live").mkdir()
    (cut := tmp_path / "cut").mkdir()
    data, random, metas, overwritten = live / "data.mdb", Random(1), list[tuple[bytes, int]](), 0
    with lmdb.open(str(live), map_size=1 << 28, metasync=False) as environment:
        for number in range(60):
            with environment.begin(write=True) as transaction:
                for _ in range(5):
                    transaction.put(b"%d" % random.randrange(40), bytes(random.choice((9, 900, 5000))))
                transaction.put(b"number", b"%d" % number)
            whole = data.read_bytes()
            metas.append((whole[: 2 * PAGE], number))
            if number < 10:
                continue
            before, expected = metas[-3]
            (cut / "data.mdb").write_bytes(before + whole[2 * PAGE :])
            pages.verify(cut / "data.mdb", all_pages=True)
            with lmdb.open(str(cut), readonly=True) as found, found.begin() as transaction:
                assert transaction.get(b"number") == b"%d" % expected
            with (cut / "data.mdb").open("rb") as file:
                look = pages.PageFile(file.fileno())
                older = min(look.meta(0), look.meta(1), key=lambda meta: meta.transaction)
                with suppress(pages.WrongPage):
                    overwritten += look.last_that_freed(older) != older.transaction.to_bytes(8, sys.byteorder)
    assert overwritten, "no page of the commit before was written over, so this shows nothing"


def test_commits_of_another_process_are_no_damage(tmp_path: Path) -> None:
    program = """
import lmdb, sys
environment = lmdb.open(sys.argv[1], map_size=1 << 28, sync=False)
number = 0
while True:
    with environment.begin(write=True) as transaction:
        for key in range(number % 7, 2000, 7):
            transaction.put(b"%d" % key, bytes(number % 90))
    number += 1
    if number == 5:
        print("go", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"go\n"
        for _ in range(30):
            pages.verify(tmp_path / "data.mdb", all_pages=True)
        writer.kill()


@pytest.fixture
def filled(store_path: Path) -> Path:
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])
    with kvstore.open(store_path) as store:
        store.create_table("t", schema, primary_key="k").upsert([{"k": k, "s": "x" * 90} for k in range(300)])
    return store_path


def damage_a_leaf(path: Path) -> None:
    """Let a page that holds rows say that it is none."""
    with open(path / "tables/1/0/index/data.mdb", "r+b") as file:
        whole = file.read()
        full = 50  # bytes of head and pointers; the leaf of free pages has less, and old bytes after them
        leaves = [at for at in range(2 * PAGE, len(whole), PAGE) if whole[at + 10] == 2 and whole[at + 12] > full]
        at = max(at for at in leaves if b"x" * 90 in whole[at : at + PAGE])
        file.seek(at + 10)
        file.write(b"\x04")


def test_a_damaged_page_of_a_small_index_is_refused_and_the_index_rebuilt(filled: Path) -> None:
    damage_a_leaf(filled)
    with kvstore.open(filled, read_only=True) as store:
        with pytest.raises(CorruptData, match="page"):
            store.table("t").count()
        assert not store.check().ok
    with kvstore.open(filled) as store:
        assert store.table("t").scan().read_all().num_rows == 300
        assert store.check().ok


def test_a_damaged_page_of_a_large_index_is_found_by_a_check(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what LMDB finds itself has our name; it does not look when it scans, and may end the process."""
    damage_a_leaf(filled)
    monkeypatch.setattr(pages, "ALL_PAGES_BYTES_MAX", 0)
    with kvstore.open(filled, read_only=True) as store:
        assert store.table("t").count() == 300
        assert "page" in " ".join(store.check().findings)
        with pytest.raises(CorruptData):
            store.table("t").get(299)


def test_a_segment_of_the_catalog_under_another_name_is_refused(filled: Path) -> None:
    journal = filled / "meta/journal/data.mdb"
    whole = journal.read_bytes()
    name = b"00000000000000000001"
    for other in (b"00000000000000000003", b"0000000000000000000q", b"80000000000000000001"):
        assert whole.count(name) == 1
        journal.write_bytes(whole.replace(name, other))
        with kvstore.open(filled) as store, pytest.raises(CorruptImage, match="name"):
            store.list_tables()


def test_an_index_of_no_bytes_is_rebuilt(filled: Path) -> None:
    os.truncate(filled / "tables/1/0/index/data.mdb", 0)
    with kvstore.open(filled) as store:
        assert store.table("t").count() == 300
