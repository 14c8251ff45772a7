"""Under a limit of address space (`ulimit -v`), each use works or raises an error that is about address space."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk import address_space
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.errors import OutOfAddressSpace
from tests.conftest import OpenStore

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])

LIMITED = '''
import json, resource, sys
from pathlib import Path
import pyarrow as pa
import kvstore

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])


def limit(mebibytes):
    """Let this process have that much more."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (mebibytes << 20), resource.RLIM_INFINITY))


def unlimit():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def rows(start, count, size=10):
    return [{"k": k, "v": "x" * size} for k in range(start, start + count)]
'''

USES = (
    LIMITED
    + """
base = Path(sys.argv[1])
with kvstore.open(base / "warm") as store:  # threads and allocators have what they keep, and modules are imported:
    # an import that fails for want of memory can leave Python's own lock of imports locked
    warm = store.create_table("t", SCHEMA, "k")
    warm.upsert(rows(0, 10))
    warm.upsert(rows(0, 100))
    warm.get(5), warm.count(), list(warm.changelog()), list(warm.scan())
for mebibytes in json.loads(sys.argv[2]):
    path, done, acknowledged = base / str(mebibytes), [], 0
    limit(mebibytes)
    try:
        with kvstore.open(path) as store:
            done.append("open")
            table = store.create_table("t", SCHEMA, "k", buckets=3)
            done.append("create")
            for step in range(5):
                table.upsert(rows(100 * step, 100, 1000))
                acknowledged = 100 * step + 100
            done.append("write")
            assert table.get(5)["k"] == 5
            assert sum(batch.num_rows for batch in table.changelog()) == acknowledged
            assert sum(batch.num_rows for batch in table.scan()) == acknowledged
            done.append("read")
        with kvstore.open(path, read_only=True) as store:
            assert store.table("t").count() == acknowledged
            done.append("reopen")
        said = "works"
    except kvstore.errors.StoreError as error:
        said = str(error)
    unlimit()
    print(json.dumps([mebibytes, done, acknowledged, said]), flush=True)
"""
)


def test_each_use_works_or_says_that_address_space_is_short(tmp_path: Path) -> None:
    limits = [10, 20, 40, 80, 160, 320, 1_000, 4_000]
    run = subprocess.run(
        [sys.executable, "-c", USES, str(tmp_path), json.dumps(limits)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    outcomes = [json.loads(line) for line in run.stdout.splitlines()]
    assert [each[0] for each in outcomes] == limits
    for mebibytes, done, acknowledged, said in outcomes:
        assert said == "works" or ("address space" in said and "ulimit -v" in said), (mebibytes, done, said)
        with kvstore.open(tmp_path / str(mebibytes)) as store:
            assert ("create" in done) == (store.list_tables() == ["t"])
            if "create" in done:
                assert store.table("t").count() >= acknowledged
            else:
                store.create_table("t", SCHEMA, "k", buckets=3)
            assert store.check()
    assert outcomes[0][3] != "works"
    assert [each[3] for each in outcomes[-3:]] == ["works"] * 3


GROWS = (
    LIMITED
    + """
with kvstore.open(sys.argv[1], map_bytes=1 << 20) as store:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert(rows(0, 10))
    store.flush()
    limit(9)
    acknowledged, said = 10, None
    while said is None and acknowledged < 40_000:
        try:
            table.upsert(rows(acknowledged, 500, 2_000))
            acknowledged += 500
        except MemoryError:
            limit(9)  # Python itself, or a thread that began meanwhile, needed it
        except kvstore.errors.StoreError as error:
            said = str(error)
    found = [table.get(k)["k"] for k in (0, acknowledged - 1)]
    unlimit()
    table.upsert(rows(acknowledged, 1))
    print(json.dumps([acknowledged, found, said, table.count()]))
"""
)


def test_an_index_that_can_not_grow_says_why_and_goes_on_once_it_can(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", GROWS, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    acknowledged, found, said, count = json.loads(run.stdout)
    assert "address space" in said
    assert found == [0, acknowledged - 1]
    assert count == acknowledged + 1
    with kvstore.open(tmp_path / "s") as store:
        assert store.table("t").count() == acknowledged + 1
        assert store.check()


READS = (
    LIMITED
    + """
path, mebibytes = sys.argv[1], int(sys.argv[2])
with kvstore.open(path, read_only=True) as store:  # threads and allocators have what they keep
    assert store.table("t").count() == 10
limit(mebibytes)
with kvstore.open(path, read_only=True) as store:
    table = store.table("t")
    assert table.count() == 10
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        said = [table.count(), table.get(11_000)["k"]]
    except kvstore.errors.StoreError as error:
        said = str(error)
    unlimit()
    print(json.dumps([said, table.count()]))
"""
)


@pytest.mark.parametrize("mebibytes", [80, 1_000])
def test_a_reader_with_a_smaller_map_than_the_writer(tmp_path: Path, mebibytes: int) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([{"k": k, "v": ""} for k in range(10)])
        store.flush()
        with subprocess.Popen(
            [sys.executable, "-c", READS, str(path), str(mebibytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},  # a thread more on a busy machine would take 64 MiB of its own
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            for step in range(12):
                table.upsert([{"k": step * 1000 + k, "v": "x" * 8_000} for k in range(1000)])
            store.flush()
            reader.stdin.write("\n")
            reader.stdin.flush()
            said, count = json.loads(reader.stdout.readline())
        assert reader.returncode == 0
        assert count == 12_000
        assert said == [12_000, 11_000] or "address space" in said


def test_a_catalog_whose_map_is_small_grows(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.meta.journal.MAP_BYTES", 1 << 16)
    wide = pa.schema([pa.field("k", pa.int64(), False), *(pa.field(f"c{n}", pa.int64()) for n in range(1000))])
    with open_store() as store:
        for number in range(5):
            store.create_table(f"t{number}", wide, "k")
        assert len(store.list_tables()) == 5
        assert store.check()


def test_sizes_of_maps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    room = address_space.ROOM_BYTES
    free = 0
    monkeypatch.setattr(address_space, "is_free", lambda size: size <= free)
    for free in range(room, 1 << 30, 77 << 20):
        for wanted, needed in ((256 << 30, 0), (256 << 30, 50 << 20), (1 << 20, 0), (1 << 20, 3 << 20)):
            try:
                size = address_space.size_of_map(wanted, needed, tmp_path)
            except OutOfAddressSpace:
                assert free < max(wanted, needed)
                assert free < needed + room
                continue
            assert size <= free
            assert size == max(wanted, needed) or size >= needed + room
        try:
            size = address_space.size_of_larger_map(64 << 20, 70 << 20, tmp_path)
            assert 70 << 20 < size <= (64 << 20) + free
        except OutOfAddressSpace:
            assert free < (6 << 20) + room


def test_a_map_that_can_not_be_had_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB gives its map up before it makes another one: without a map the process would be ended."""
    environment = open_environment(tmp_path / "e", Files(), map_bytes=1 << 20, create=True)
    with monkeypatch.context() as patch:
        patch.setattr(address_space, "is_free", lambda _: False)
        with pytest.raises(OutOfAddressSpace, match="ulimit -v"):
            environment.grow()
    transaction = environment.begin_write()
    transaction.put(b"k", b"v")
    transaction.commit()
    assert environment.get(b"k") == b"v"
    environment.grow()
    assert environment.get(b"k") == b"v"
    environment.close()
