"""Files that are gone, emptied, cut off or older than the rest: it is said, and nothing that is left is removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import CorruptBatch, CorruptData, CorruptImage, InvalidRequest, NotAStore
from tests.support.processes import ran
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]


def filled(path: Path, *names: str) -> None:
    with kvstore.open(path) as store:
        for name in names:
            store.create_table(name, SCHEMA, "k").upsert(ROWS)


def rows_in(path: Path, name: str) -> list[dict[str, object]]:
    with kvstore.open(path, read_only=True) as store:
        return rows_of(store.table(name))


@pytest.mark.parametrize("read_only", [True, False])
def test_an_emptied_catalog_is_no_new_catalog(store_path: Path, read_only: bool) -> None:
    filled(store_path, "important")
    os.truncate(store_path / "meta/journal/data.mdb", 0)
    with pytest.raises(CorruptData):
        kvstore.open(store_path, read_only=read_only).list_tables()
    assert (store_path / "meta/journal/data.mdb").stat().st_size == 0
    assert list((store_path / "tables/1/0/log").glob("*.log"))


def test_a_catalog_from_a_backup_costs_no_table_that_came_after_it(store_path: Path, tmp_path: Path) -> None:
    filled(store_path, "one")
    shutil.copytree(store_path / "meta", tmp_path / "backup")
    newer = tmp_path / "newer"
    filled(store_path, "two")
    shutil.move(store_path / "meta", newer)
    shutil.copytree(tmp_path / "backup", store_path / "meta")
    with kvstore.open(store_path) as store:
        assert store.check().findings == ["the catalog lacks table 2"]
        with pytest.raises(CorruptImage, match="restore"):
            store.create_table("three", SCHEMA, "k")
        assert store.list_tables() == ["one"]
    shutil.rmtree(store_path / "meta")
    shutil.move(newer, store_path / "meta")
    assert rows_in(store_path, "two") == ROWS


def test_a_table_that_is_created_during_a_check_is_no_finding(store_path: Path) -> None:
    filled(store_path, "one")
    with kvstore.open(store_path) as store:

        def progress(_done: int, _total: int) -> None:
            if "two" not in store:
                store.create_table("two", SCHEMA, "k").upsert(ROWS)

        assert store.check(progress=progress).findings == []
        assert "two" in store


def test_the_rest_of_an_unfinished_creation_stops_no_later_one(store_path: Path) -> None:
    filled(store_path, "one")
    shutil.copytree(store_path / "meta", store_path / "meta.before")
    with kvstore.open(store_path) as store:
        store.create_table("two", SCHEMA, "k")
    shutil.rmtree(store_path / "meta")
    (store_path / "meta.before").rename(store_path / "meta")
    with kvstore.open(store_path) as store:
        assert store.check()
        store.create_table("three", SCHEMA, "k").upsert(ROWS)
        assert store.check()


@pytest.mark.parametrize("inside", ["thesis.txt", "journal/thesis.txt", "thesis/data.mdb"])
def test_a_directory_that_only_looks_like_the_beginning_of_a_store_is_left_alone(tmp_path: Path, inside: str) -> None:
    mine = tmp_path / "mine" / "meta" / inside
    mine.parent.mkdir(parents=True)
    mine.write_text("five years")
    with pytest.raises(NotAStore):
        kvstore.open(tmp_path / "mine")
    assert mine.read_text() == "five years"
    assert not (tmp_path / "mine" / "STORE").exists()


LOSSES = {"log": ["0/log"], "segments": ["0/log/*.log"], "log and index": ["0/log", "0/index"], "bucket": ["0"]}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_table_that_lost_its_log_is_no_empty_table(store_path: Path, loss: str) -> None:
    filled(store_path, "t")
    for pattern in LOSSES[loss]:
        for path in (store_path / "tables/1").glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with kvstore.open(store_path) as store:
        assert not store.check()
        table = store.table("t")
        for call in (lambda: table.upsert(ROWS), lambda: list(table.changelog())):
            with pytest.raises(CorruptData):
                call()
    with kvstore.open(store_path, read_only=True) as store:
        assert not store.check()
        with pytest.raises(CorruptBatch if loss in ("log", "segments") else CorruptData):
            list(store.table("t").changelog())


@pytest.mark.parametrize("lost", ["emptied", "cut off", "gone"])
def test_an_index_that_is_lost_is_built_by_writers_and_named_by_readers(store_path: Path, lost: str) -> None:
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(pa.record_batch([np.arange(100_000), pa.array(["v" * 40] * 100_000)], schema=SCHEMA))
    data = store_path / "tables/1/0/index/data.mdb"
    size = data.stat().st_size
    assert size > 4 << 20
    if lost == "gone":
        data.unlink()
    else:
        os.truncate(data, 0 if lost == "emptied" else size * 2 // 3)
    read = (
        "import sys, kvstore; store = kvstore.open(sys.argv[1], read_only=len(sys.argv) > 2);"
        " print(store.table('t').scan().read_all().num_rows)"
    )
    # In another process: LMDB would end this one if it were let at a file that is cut off.
    for arguments, ends_well in ([["read-only"], False], [[], True], [["read-only"], True]):
        done = ran(read, store_path, *arguments)
        assert done.returncode == (0 if ends_well else 1), done.stderr
        assert done.stdout.strip() == "100000" if ends_well else "CorruptData" in done.stderr


AS_ORDINARY_USER = """
import os, sys
import kvstore
from kvstore.errors import *
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    kvstore.open(sys.argv[1], read_only=len(sys.argv) > 2).list_tables()
except StoreError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Not ``tmp_path``: how many directories pytest makes above that, which are its own, depends on workers."""
    with tempfile.TemporaryDirectory(prefix="kvstore-test-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.mark.parametrize("case", ["directory", "place", "data", "name too long", "meta", "journal"])
def test_a_store_one_is_not_allowed_to_use_is_refused_by_name(open_to_all: Path, case: str) -> None:
    path = open_to_all / "store"
    filled(path, "t")
    for each in (path, *path.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    forbidden = {"directory": path, "place": open_to_all, "data": path / "meta/journal/data.mdb"}.get(case)
    forbidden = forbidden or {"meta": path / "meta", "journal": path / "meta/journal"}.get(case, path)
    allowed = forbidden.stat().st_mode
    forbidden.chmod(
        {"directory": 0o000, "place": 0o555, "data": 0o000, "meta": 0o600, "journal": 0o600}.get(case, 0o755)
    )
    target = {"place": open_to_all / "new", "name too long": open_to_all / ("x" * 300)}.get(case, path)
    try:
        for arguments in ([], ["read-only"]):
            done = ran(AS_ORDINARY_USER, target, *arguments)
            assert done.stdout.split() == [
                "UnsupportedOperation" if case in ("data", "meta", "journal") else "NotAStore"
            ], done.stderr
    finally:
        forbidden.chmod(allowed)


CHECKED_BY_ORDINARY_USER = AS_ORDINARY_USER.replace(
    "kvstore.open(sys.argv[1], read_only=len(sys.argv) > 2).list_tables()",
    "print(*kvstore.open(sys.argv[1], read_only=True).check().findings, sep='\\n')",
)


@pytest.mark.parametrize("suffix", ["log", "index"])
def test_a_file_of_a_log_that_may_not_be_read_is_a_finding(open_to_all: Path, suffix: str) -> None:
    path = open_to_all / "store"
    filled(path, "t")
    for each in (path, *path.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    forbidden = sorted(path.rglob(f"*.{suffix}"))[-1]
    forbidden.chmod(0)
    done = ran(CHECKED_BY_ORDINARY_USER, path)
    assert f"{forbidden.name} can't be read: Permission denied" in done.stdout, done.stderr


@pytest.mark.parametrize("pattern", ["*.index", "TABLE"])
def test_a_directory_in_the_place_of_a_file_is_a_finding(store_path: Path, pattern: str) -> None:
    filled(store_path, "t")
    file = sorted(store_path.rglob(pattern))[-1]
    file.unlink()
    file.mkdir()
    with kvstore.open(store_path, read_only=True) as store:
        (finding,) = store.check().findings
    assert "can't be read" in finding
    assert file.name in finding


def test_a_source_of_a_job_that_may_not_be_read_is_refused_by_name(open_to_all: Path) -> None:
    path = open_to_all / "store"
    filled(path, "t")
    (open_to_all / "closed/in").mkdir(parents=True)
    (open_to_all / "closed").chmod(0o600)
    create = (
        f"kvstore.open(sys.argv[1]).create_job('j', source={str(open_to_all / 'closed/in')!r}, format='csv', table='t')"
    )
    for each in (path, *path.rglob("*")):
        each.chmod(0o777 if each.is_dir() else 0o666)
    script = AS_ORDINARY_USER.replace("kvstore.open(sys.argv[1], read_only=len(sys.argv) > 2).list_tables()", create)
    done = ran(script, path)
    (open_to_all / "closed").chmod(0o700)
    assert done.stdout.split() == ["InvalidRequest"], done.stderr


def test_links_that_form_a_loop_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    loop = tmp_path / "a"
    with kvstore.open(tmp_path / "s") as store:
        for call in (
            lambda: kvstore.open(loop),
            lambda: kvstore.open(loop / "s", read_only=True),
            lambda: store.backup(loop),
            lambda: store.add_replica(str(loop)),
            lambda: kvstore.follow(str(tmp_path / "place"), loop),
            lambda: kvstore.repair(loop),
        ):
            with pytest.raises(NotAStore, match="form a loop"):
                call()
        assert sorted(os.listdir(tmp_path)) == ["a", "b", "s"]


@pytest.mark.parametrize("place", ["x\udcff", "x\udcff/s", "link"])
def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "x\udcff")
    with pytest.raises(InvalidRequest, match="UTF-8"):
        kvstore.open(tmp_path / place)
    assert os.listdir(tmp_path) == ["link"]
