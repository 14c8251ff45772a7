"""A replica is opened by a path or URL, in Python and by commands; what can't be opened says what to do."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

import kvstore
from kvstore.cli.arguments import location_of
from kvstore.errors import InvalidRequest, UnsupportedOperation
from kvstore.replica.in_place.cache import ObjectCache
from kvstore.replica.read.tail import ReplicaTail
from logformat.replica.object_file import FoundObject
from tests.cli.commands import fine, run
from tests.replica.followers import Leader, store_id
from tests.replica.objects import SCHEMA


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": 2})
        store.add_replica(str(tmp_path / "r"), "r").ship()
    return tmp_path / "r"


def test_a_replica_is_opened_to_be_read_only(replica: Path) -> None:
    for place in (replica, str(replica), replica.as_uri()):
        with pytest.raises(UnsupportedOperation, match="read_only=True"):
            kvstore.open(place)
        with pytest.raises(InvalidRequest, match="durability must be one of"):
            kvstore.open(place, True, "nonsense")  # type: ignore[arg-type]
        kvstore.open(place, True, "interval").close()


@pytest.mark.parametrize("place", [str, Path.as_uri])
def test_commands_read_a_replica_by_its_directory_or_url(replica: Path, place: Callable[[Path], str]) -> None:
    found = fine("describe", place(replica), "t", "--json").lines[0]
    assert (found["rows"], found["consumers"]) == (1, [])
    assert fine("scan", place(replica), "t", "--json").lines == [{"k": 1, "v": 2}]
    assert fine("check", place(replica), "--json").lines[0]["buckets"] == [{"table": "t", "bucket": 0, "findings": []}]
    assert "rows" not in fine("check", place(replica)).out, "it counts none"
    for command in (("upsert", place(replica), "t"), ("compact", place(replica))):
        assert "are only read" in (error := run(*command).err)
        assert f"url={replica.as_uri()}" in error
    assert fine("sql", place(replica), "SELECT v FROM t", "--json").lines == [{"v": 2}]
    assert [each["after"] for each in fine("history", place(replica), "t", "1", "--json").lines] == [{"k": 1, "v": 2}]
    assert "the directory of a store" in run("undo", place(replica), "t", "--start", "earliest").err


def test_a_url_that_a_command_got_as_a_path_has_its_slashes() -> None:
    for url in ("s3://bucket/x/y", "gs://bucket", "file:///data/replica"):
        assert location_of(Path(url)) == url
    for path in ("/data/s3:/x", "c:/x", "x"):
        assert location_of(Path(path)) == Path(path)
    assert "path=s3://bucket/x" in run("meta", "recover", "s3://bucket/x").err
    assert "path=file:///data/x" in run("init", "file:///data/x").err


def test_openers_of_one_cache_keep_it_below_the_limit_together(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 1)
    table = leader.store.table("t")
    for number in range(12):
        table.upsert([{"k": k, "v": number * k} for k in range(300)])
        leader.ship()
    names = [str(name) for name in leader.objects.names if name.stream.table_id == 1]
    largest = max(len(leader.objects.held[name]) for name in names)
    limit, each = 6 * largest, store_id(leader.objects)
    caches = [ObjectCache(leader.objects, tmp_path / "cache", each, limit) for _ in range(4)]
    for number, name in enumerate(names):
        caches[number % 4].get(name, bytes_max=1 << 20)
        assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*/*")) <= limit + 4 * limit // 16
    leader.store.close()


def test_what_stays_open_is_bounded(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "s", 1)
    for number in range(8):
        leader.store.create_table(f"u{number}", SCHEMA, "k").upsert({"k": 1, "v": number})
    leader.ship()
    store = kvstore.StoreInReplica("memory://x", 0, client=leader.objects, directory=tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    tables = [store.table(f"u{number}") for number in range(8)]
    assert [table[1]["v"] for table in tables] == list(range(8))
    per_index = 4
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + per_index, "only the last index is open"
    store.close()
    leader.apply_epoch(leader.store.table("t"))
    leader.ship()
    tail = ReplicaTail("", "t", leader.objects)
    leader.apply_epoch(leader.store.table("t"))
    leader.ship()
    for _ in range(2):
        tail.poll()
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, FoundObject)], "no object stays in memory"
    leader.store.close()
