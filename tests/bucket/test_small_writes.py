"""Small writes take a way of their own, and leave the same bytes in log and index as the long way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import lmdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.bucket import write_path
from kvstore.errors import CorruptData, DeletionDisabled, SchemaMismatch
from kvstore.index.index import Index
from kvstore.kernel import library
from kvstore.kernel.changes import ChangeMaker, Made
from kvstore.memtable.memtable import Memtable
from kvstore.process.calls import Reply, answer_of, wait_for
from kvstore.request import encoded
from kvstore.testing import strategies
from tests.support.committers import committer_of
from tests.support.small_writes import applied, store_at, written
from tests.support.tables import changes_of, rows_of
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int32(), False), pa.field("s", pa.string()), pa.field("f", pa.float64(), False)])


@contextmanager
def the_long_way() -> Iterator[None]:
    with mock.patch.object(encoded, "ROWS_MAX", -1), library.switched_off():
        yield


WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "the long way": the_long_way,
    "in Python": library.switched_off,
    "with the kernel": nullcontext,
}


@pytest.fixture
def small_ones() -> Iterator[list[int]]:
    """Numbers of change records of the writes that took the small way; there is no kernel meanwhile."""
    found: list[int] = []
    merge = write_path.merge_small

    def noticed(*arguments: Any) -> Any:
        merged = merge(*arguments)
        if merged is not None:
            found.append(merged.records)
        return merged

    with library.switched_off(), mock.patch.object(write_path, "merge_small", noticed):
        yield found


@st.composite
def histories(draw: st.DrawFn) -> tuple[pa.Schema, list[str], dict[str, Any], list[tuple[Any, ...]]]:
    """A table's columns, key and options, and numbered batches of changes, in which keys meet again."""
    keys = draw(st.lists(st.sampled_from(strategies.KEY_TYPES), min_size=1, max_size=2))
    others = draw(st.lists(st.sampled_from(strategies.SCALAR_TYPES), max_size=6))
    fields = [pa.field(f"k{nth}", kind, False) for nth, kind in enumerate(keys)]
    fields += [pa.field(f"c{nth}", kind) for nth, kind in enumerate(others)]
    schema = pa.schema(draw(st.permutations(fields)))
    options = {
        "changelog_image": draw(st.sampled_from(["full", "full", "wal"])),
        "buckets": draw(st.sampled_from([1, 1, 3])),
        "compression": draw(st.sampled_from(["lz4", None])),
        "merge_engine": draw(st.sampled_from(["last_row", "last_row", "first_row"])),
        "skip_identical_updates": draw(st.sampled_from([False, False, True])),
    }
    # Arrow writes what a column has under its nulls: here it is nothing, elsewhere it may be garbage.
    pool = draw(strategies.rows(pa.schema([field.with_nullable(False) for field in schema]), rows_max=6))
    there = [
        draw(st.lists(st.booleans(), min_size=pool.num_rows, max_size=pool.num_rows)) if field.nullable else True
        for field in schema
    ]
    columns = [pc.if_else(valid, column, None) for valid, column in zip(there, pool.columns, strict=True)]
    pool = pa.RecordBatch.from_arrays(columns, schema=schema)
    batches = []
    for _ in range(draw(st.integers(1, 5)) if pool.num_rows else 0):
        places = draw(st.lists(st.integers(0, pool.num_rows - 1), max_size=6))
        is_delete = draw(st.lists(st.sampled_from([False, False, True]), min_size=len(places), max_size=len(places)))
        numbers = draw(st.just((-1, -1, 0)) | st.tuples(st.integers(1, 2), st.integers(0, 2), st.sampled_from([0, 1])))
        batches.append((pool.take(pa.array(places, pa.int64())), is_delete, numbers, draw(st.booleans())))
    return schema, [f"k{nth}" for nth in range(len(keys))], options, batches


@settings(max_examples=settings().max_examples // 2)
@given(history=histories())
def test_log_and_index_have_the_bytes_of_the_long_way(history: Any, tmp_path_factory: Any) -> None:
    schema, key, options, batches = history
    path = tmp_path_factory.mktemp("stores")
    found = []
    for name, way in WAYS.items():
        with way(), store_at(path / name) as store:
            table = store.create_table("t", schema, key, **options)
            found.append((applied(table, batches), written(table)))
    assert found[0] == found[1] == found[2]


ROWS = st.fixed_dictionaries(
    {"k": st.integers(0, 3), "f": st.floats(width=64)}, optional={"s": st.none() | st.text("a\x00é", max_size=3)}
)
CALLS = st.lists(
    st.tuples(st.just("upsert"), ROWS | st.lists(ROWS, min_size=1, max_size=4))
    | st.tuples(st.just("delete"), st.integers(0, 3) | st.lists(st.integers(0, 3), min_size=1, max_size=4)),
    max_size=6,
)


@settings(max_examples=settings().max_examples // 2)
@given(calls=CALLS, buckets=st.sampled_from([1, 3]), image=st.sampled_from(["full", "wal"]))
def test_rows_of_python_have_the_bytes_of_the_long_way(
    calls: list[tuple[str, Any]], buckets: int, image: Any, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("stores")
    found = []
    for name, way in WAYS.items():
        with way(), store_at(path / name) as store:
            table = store.create_table("t", SCHEMA, "k", buckets=buckets, changelog_image=image)
            found.append(([getattr(table, name)(given) for name, given in calls], written(table)))
    assert found[0] == found[1] == found[2]


ROW = {"k": 1, "s": "a", "f": 1.5}
Write = Callable[[kvstore.Table], Any]


class TestTheWay:
    """Which writes are small; all others are tested throughout."""

    @pytest.mark.parametrize(
        "write",
        [
            lambda table: table.upsert(ROW),
            lambda table: table.upsert([ROW, ROW]),
            lambda table: table.upsert(pa.Table.from_pylist([ROW], SCHEMA)),
            lambda table: table.delete(1),
            lambda table: table.delete([1, 2]),
            lambda table: table.delete(pa.array([1], pa.int32())),
            lambda table: table.apply(kvstore.Changes.of([("upsert", ROW), ("delete", {"k": 1})], SCHEMA)),
            lambda table: table.put_if(ROW, None),
            lambda table: table.__setitem__(1, {"s": None, "f": 0.0}),
        ],
    )
    def test_a_few_rows_are_small(self, store: kvstore.Store, small_ones: list[int], write: Write) -> None:
        write(store.create_table("t", SCHEMA, "k"))
        assert len(small_ones) == 1

    @pytest.mark.parametrize(
        "options",
        [
            *({"merge_engine": kvstore.Aggregate({"s": "last_value"})}, {"primary_key": None}),
        ],
    )
    def test_tables_with_other_rules_take_the_long_way(
        self, store: kvstore.Store, small_ones: list[int], options: dict[str, Any]
    ) -> None:
        table = store.create_table("t", SCHEMA.set(2, pa.field("f", pa.float64())), **{"primary_key": "k", **options})
        table.upsert([ROW])
        assert small_ones == []

    def test_nested_columns_take_the_long_way(self, store: kvstore.Store, small_ones: list[int]) -> None:
        table = store.create_table("t", SCHEMA.append(pa.field("l", pa.list_(pa.int8()))), "k")
        table.upsert({**ROW, "l": [1]})
        assert small_ones == []

    def test_a_table_that_fills_a_column_takes_the_long_way(self, store: kvstore.Store, small_ones: list[int]) -> None:
        table = store.create_table("t", SCHEMA.append(pa.field("n", pa.int64())), "k", auto_increment="n")
        table.upsert(ROW)
        assert rows_of(table) == [{**ROW, "n": 1}]
        assert small_ones == []

    def test_what_is_not_whole_or_not_few_takes_the_long_way(self, store: kvstore.Store, small_ones: list[int]) -> None:
        table = store.create_table("t", SCHEMA.set(2, pa.field("f", pa.float64())), "k")
        table.upsert({"k": 1, "s": "x"}, columns=["k", "s"])
        table.upsert([{**ROW, "k": key} for key in range(encoded.ROWS_MAX + 1)])
        table.upsert({**ROW, "s": "x" * encoded.BYTES_MAX})
        table.delete(1)  # replaces as much
        assert small_ones == []
        assert rows_of(table)[0] == {**ROW, "k": 0}

    @pytest.mark.parametrize("behavior", ["ignore", "disable"])
    def test_deletes_that_the_table_does_not_take_are_no_small_writes(
        self, store: kvstore.Store, small_ones: list[int], behavior: Any
    ) -> None:
        table = store.create_table("t", SCHEMA, "k", delete_behavior=behavior)
        table.upsert(ROW)
        if behavior == "disable":
            with pytest.raises(DeletionDisabled):
                table.delete(1)
        else:
            table.delete(1)
        assert (rows_of(table), small_ones) == ([ROW], [1] if behavior == "disable" else [1, 0])

    def test_a_row_that_does_not_fit_is_refused_as_ever(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k")
        for wrong in ({**ROW, "k": 2**31}, {"k": 1, "f": None}, {**ROW, "other": 1}, [ROW, {"k": 1}]):
            with pytest.raises(SchemaMismatch):
                table.upsert(wrong)
        assert table.offsets() == {0: (0, 0)}

    def test_rows_of_an_earlier_schema_are_merged_the_long_way(
        self, store: kvstore.Store, small_ones: list[int]
    ) -> None:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([ROW, {**ROW, "k": 2}])
        store.add_columns("t", [pa.field("new", pa.int8())])
        table.upsert({**ROW, "new": 1})
        table.upsert({**ROW, "new": 2})
        table.delete(2)
        assert small_ones == [2, 2]  # of the later ones, only that of the row which was stored with the new column
        assert rows_of(table) == [{**ROW, "new": 2}]

    def test_a_table_that_is_altered_before_the_turn_of_a_write(
        self, store: kvstore.Store, small_ones: list[int]
    ) -> None:
        table = store.create_table("t", SCHEMA, "k")
        committer = committer_of(table)
        writes = [lambda: table.upsert([ROW, {**ROW, "k": 2}]), lambda: table.delete(2)]
        with ThreadPoolExecutor() as threads, committer.turn.taken():
            for nth, write in enumerate(writes):
                threads.submit(write)
                wait_until(lambda nth=nth: committer.waiting > nth)
            store.add_columns("t", [pa.field("new", pa.int8())])
        assert rows_of(table) == [{**ROW, "new": None}]
        assert [change[1] for change in changes_of(table)] == ["insert", "insert", "delete"]
        assert small_ones == []

    def test_rows_of_a_table_whose_columns_have_other_names_or_are_dropped(
        self, store: kvstore.Store, small_ones: list[int]
    ) -> None:
        table = store.create_table("t", SCHEMA, "k")
        committer = committer_of(table)
        with ThreadPoolExecutor() as threads, committer.turn.taken():
            threads.submit(table.upsert, [ROW, {**ROW, "k": 2}])
            wait_until(lambda: committer.waiting > 0)
            store.rename_columns("t", {"s": "text", "k": "key"})
        renamed = {"text": "a", "f": 1.5}
        assert rows_of(table) == [{"key": 1, **renamed}, {"key": 2, **renamed}]
        table.upsert({"key": 1, "text": "b", "f": 0.5})
        assert small_ones == [2, 2]
        store.drop_columns("t", "text")
        table.upsert({"key": 2, "f": 2.5})
        with pytest.raises(SchemaMismatch):
            table.upsert({"key": 2, "f": 2.5, "text": "d"})
        assert rows_of(table) == [{"key": 1, "f": 0.5}, {"key": 2, "f": 2.5}]
        assert small_ones == [2, 2]  # dropped columns need the long way

    def test_whole_rows_of_flat_columns_are_merged_by_the_kernel(
        self, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All others are merged in Python, as are all where there is no kernel."""
        native = list[int]()

        def counting(make: Callable[..., Made | None]) -> Callable[..., Made | None]:
            def counted(*given: Any, **more: Any) -> Made | None:
                found = make(*given, **more)
                native.append(0 if found is None else found.records)
                return found

            return counted

        monkeypatch.setattr(ChangeMaker, "make", counting(ChangeMaker.make))
        monkeypatch.setattr(ChangeMaker, "make_few", counting(ChangeMaker.make_few))
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([{**ROW, "k": key} for key in range(encoded.ROWS_MAX)])
        table.upsert([ROW, {**ROW, "s": None}])
        table.upsert(pa.Table.from_pylist([ROW], SCHEMA))
        table.upsert([{**ROW, "k": key} for key in range(encoded.ROWS_MAX + 1)])
        table.delete([1, 2, 1000])
        table.put_if(ROW, None)
        with library.switched_off():
            table.upsert(ROW)
        store.add_columns("t", [pa.field("new", pa.int8())])
        table.upsert(ROW)
        skipping = store.create_table("skips", SCHEMA, "k", skip_identical_updates=True)
        skipping.upsert([ROW, ROW])
        store.create_table("first", SCHEMA, "k", merge_engine="first_row").upsert([ROW, {**ROW, "s": "b"}])
        expected = [encoded.ROWS_MAX, 4, 2, 2 * encoded.ROWS_MAX + 1, 2, 1, 0, 1, 1]
        assert native == ([] if library.kernel() is None else expected)
        assert rows_of(store.table("first")) == rows_of(skipping) == [ROW]

    def test_a_damaged_row_is_reported_and_nothing_is_written(
        self, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([ROW, {**ROW, "k": 2}])
        found = Memtable.get
        with monkeypatch.context() as patch:
            patch.setattr(Memtable, "get", lambda *given: [row[:-1] + b"x" for row in found(*given)])
            with pytest.raises(CorruptData):
                table.upsert({**ROW, "s": "b"})
        table.upsert({**ROW, "s": "c"})
        assert [row["s"] for row in rows_of(table)] == ["c", "a"]
        assert table.offsets() == {0: (0, 4)}

    def test_an_index_that_is_full_grows_while_small_writes_are_merged(
        self, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(ROW)
        put, failures = Index.put, [lmdb.MapFullError(), lmdb.MapFullError()]

        def failing(index: Index, keys: list[bytes], values: list[bytes]) -> None:
            put(index, keys[:1], values[:1])
            if failures:
                raise failures.pop()
            put(index, keys, values)

        monkeypatch.setattr(Index, "put", failing)
        table.upsert([{**ROW, "s": "b"}, {**ROW, "k": 2}])
        store.flush()
        assert (table.count(), table.offsets(), failures) == (2, {0: (0, 4)}, [])


def test_an_answer_may_be_asked_for_again() -> None:
    given, refused = Reply[int](), Reply[int]()
    given.set_result(1)
    refused.set_exception(SchemaMismatch("no"))
    for _ in range(2):
        assert (answer_of(given), given.exception(), given.done()) == (1, None, True)
        assert wait_for(refused) is refused
        with pytest.raises(SchemaMismatch):
            answer_of(refused)


ROW_BY_ROW = """
import sys
import kvstore
with kvstore.open(sys.argv[1], durability="none", commit_idle_ms=60_000, commit_wait_ms=60_000) as store:
    table = store.create_table("t", {"k": "int64", "name": "string"}, "k")
    for k in range(1000):
        table.upsert({"k": k, "name": f"name {k}" * (k % 9)})
    store.flush()
    assert table.get(8)["name"] == "name 8" * 8
print("pandas" in sys.modules)
import pandas
"""


def test_a_program_that_upserts_row_by_row_does_not_wait_for_pandas(tmp_path: Path) -> None:
    """Arrow imports it for some of its calls, where it is there: a third of a second, in which every thread waits."""
    done = subprocess.run(
        [sys.executable, "-c", ROW_BY_ROW, tmp_path / "store"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
