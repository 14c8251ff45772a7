"""What one call costs does not grow with the tables, buckets, consumers or writers that a store has."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk import held_directory, lmdb_files
from kvstore.errors import Unavailable
from kvstore.index import open_readers
from kvstore.index.index import Index
from kvstore.index.open_readers import OpenReaders
from tests.conftest import OpenStore
from tests.store.helpers import Program
from tests.support.calls_made import calls_made

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
BUCKETS = 24
MOST = 4
"""Indexes that stay open for reading in these tests."""
DESCRIPTORS_OF_READER = 4

WRITER = """
table = kvstore.open(path).table("t")
table.upsert([{"k": key, "v": 1} for key in range(100)])
table.flush()
print("written")
sys.stdin.readline()
table.upsert([{"k": key, "v": 2} for key in range(100, 150)])
table.flush()
print("written")
sys.stdin.readline()
"""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", SCHEMA, primary_key="k")


@pytest.fixture
def few_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenReaders.__init__, "__defaults__", (MOST,))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Directories in which LMDB was opened."""
    found: list[str] = []
    real = lmdb_files.open_lmdb

    def noted(directory: Path, *args: object, **options: object) -> object:
        found.append(str(directory))
        return real(directory, *args, **options)  # type: ignore[arg-type]  # as they were given

    monkeypatch.setattr(lmdb_files, "open_lmdb", noted)
    return found


def rising(cost: Callable[[int], int], few: int, many: int) -> float:
    """How much more the last of many cost than those around few; the least of three, as other work happens, too."""
    costs = {number: cost(number) for number in range(1, many + 1)}
    return min(costs[number] for number in (many - 2, many - 1, many)) / min(
        costs[number] for number in (few - 1, few, few + 1)
    )


def test_creating_and_using_a_table_costs_the_same_in_a_store_of_many(store: kvstore.Store) -> None:
    def create(number: int) -> int:
        return calls_made(lambda: store.create_table(f"t{number}", SCHEMA, primary_key="k"))

    assert rising(create, few=5, many=40) < 1.5
    assert rising(lambda number: calls_made(lambda: store.table(f"t{number}").schema), few=5, many=40) < 1.5
    assert rising(lambda number: calls_made(lambda: store.table(f"t{number}").count()), few=5, many=40) < 1.5


def test_the_first_write_looks_at_no_other_directory(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_directory, "LOOK_SECONDS", 1_000)
    looked: list[str] = []
    real = held_directory.what_happened
    monkeypatch.setattr(held_directory, "what_happened", lambda path, held: looked.append(path) or real(path, held))

    def write(number: int) -> int:
        looked.clear()
        tables[number].upsert({"k": 1, "v": 1})
        return len(looked)

    tables = [store.create_table(f"t{number}", SCHEMA, primary_key="k") for number in range(31)]
    assert rising(write, few=5, many=30) < 1.5


def test_a_consumer_costs_the_same_among_many(store: kvstore.Store, table: kvstore.Table) -> None:
    def commit(number: int) -> int:
        return calls_made(lambda: store.consumer(f"c{number}").commit("t", {0: 0}))

    def position(number: int) -> int:
        commit(number)
        return calls_made(lambda: store.consumer(f"c{number}").position("t"))

    def drop(number: int) -> int:
        commit(number)
        cost = calls_made(lambda: store.drop_consumer(f"c{number}"))
        commit(number)
        return cost

    assert rising(commit, few=10, many=150) < 1.5
    for each in list(store.consumers):
        store.drop_consumer(each)
    assert rising(position, few=10, many=150) < 1.5
    for each in list(store.consumers):
        store.drop_consumer(each)
    assert rising(drop, few=10, many=150) < 1.5
    assert len(store.consumers) == 150


def test_a_named_writer_costs_the_same_among_many(table: kvstore.Table) -> None:
    def begin(number: int) -> int:
        with table.writer(name=f"w{number}") as writer:
            writer.upsert({"k": number, "v": 0})
        writer_id = table.writers[f"w{number}"].writer_id
        return calls_made(lambda: table.bucket(0).begin(writer_id))

    assert rising(begin, few=10, many=100) < 1.5


@pytest.mark.usefixtures("few_readers")
def test_few_indexes_stay_open_that_are_only_read(
    open_store: OpenStore, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS)
    table = store.table("t")
    before = descriptors()
    opened.clear()
    assert table.count() == 0
    assert len(opened) == BUCKETS  # each once
    assert descriptors() <= before + DESCRIPTORS_OF_READER * MOST
    opened.clear()
    monkeypatch.setattr("kvstore.bucket.reading.reader.LOOK_SECONDS", 0)
    assert table.count() == 0
    assert table.offsets() == dict.fromkeys(range(BUCKETS), (0, 0))
    assert not opened  # nothing was written since
    assert descriptors() <= before + DESCRIPTORS_OF_READER * MOST


@pytest.mark.usefixtures("few_readers")
def test_what_another_process_writes_is_seen_in_buckets_that_are_not_open(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS)
    assert table.count() == 0
    with Program(store.path, WRITER) as other:
        assert other.line() == "written"
        assert table.count() == 100
        assert table.count() == 100
        other.go_on()
        assert other.line() == "written"
        assert table.count() == 150
        assert sum(end for _, end in table.offsets().values()) == 150
        other.kill()
    assert table.count() == 150
    table.upsert({"k": 1000, "v": 0})
    assert table.count() == 151


@pytest.mark.usefixtures("few_readers")
def test_what_a_killed_process_acknowledged_is_seen_in_buckets_that_are_not_open(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.bucket.reading.reader.LOOK_SECONDS", 0.0)
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS)
    assert table.count() == 0
    with Program(store.path, WRITER.replace("table.flush()", "")) as other:
        assert other.line() == "written"
        other.kill()
    assert table.count() == 100


@pytest.mark.usefixtures("few_readers")
def test_an_index_that_is_being_read_stays_open(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS)
    table.upsert([{"k": key, "v": 1} for key in range(500)])
    handles = store.runtime.open_table(store.runtime.definition("t")).handles
    for handle in handles:
        handle.stop_writing()
    with ExitStack() as stack:
        views = [stack.enter_context(handle.snapshot()) for handle in handles]
        assert table.count() == 500
        assert {row["k"] for row in table.scan().read_all().to_pylist()} == set(range(500))
        assert sum(len(keys) for view in views for keys, _ in view.rows(100)) == 500
    assert [table.get(key) for key in range(500)] == [{"k": key, "v": 1} for key in range(500)]
    before = descriptors()
    table.scan().read_all()
    assert descriptors() <= before + DESCRIPTORS_OF_READER * BUCKETS


@pytest.mark.usefixtures("few_readers")
def test_threads_read_while_indexes_are_closed_and_opened(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS)
    table.upsert([{"k": key, "v": 1} for key in range(200)])
    for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
        handle.stop_writing()

    def read(first: int) -> None:
        for key in range(first, first + 40):
            assert table.get(key % 200) == {"k": key % 200, "v": 1}
            assert table.count() == 200

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(0, 200, 50)))


class Bucket:
    """A bucket whose index is open, or that another one has closed."""

    closed = 0

    def close_reader(self) -> bool:
        self.closed += 1
        return True


def test_an_index_that_is_opened_again_and_again_counts_once() -> None:
    readers, often, once = OpenReaders(most=3), Bucket(), Bucket()
    readers.add(once.close_reader)
    for _ in range(100):
        readers.add(often.close_reader)
        readers.shrink()
    assert (often.closed, once.closed) == (0, 0)
    for _ in range(2):
        readers.add(Bucket().close_reader)
    readers.shrink()
    assert (often.closed, once.closed) == (0, 1)


@pytest.mark.usefixtures("few_readers")
def test_a_read_does_not_fail_because_another_index_can_not_be_looked_at(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS)

    def refuse(_: Index) -> None:
        raise Unavailable("Too many scans are open; finish some and try again.")

    monkeypatch.setattr(Index, "at_rest", refuse)
    assert table.count() == 0


def test_the_default_is_bounded() -> None:
    assert OpenReaders().most == open_readers.READERS_OPEN_MAX == 64
