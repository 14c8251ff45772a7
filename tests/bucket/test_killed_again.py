"""A table whose process is killed again and again, after any slice of a merge, goes on like one that never was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.errors import InvalidRequest, UniqueViolation, UnsupportedOperation
from kvstore.index.index import Index
from kvstore.memtable import memtable
from kvstore.memtable.memtable import Memtable
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.support.clocks import SetClock

NEVER_DUE: dict[str, Any] = {"commit_wait_ms": 3_600_000, "commit_idle_ms": 3_600_000, "segment_bytes_max": 2000}
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
WITH_ID = SCHEMA.append(pa.field("id", pa.int64()))
KEYS = 8
TABLES: dict[str, dict[str, Any]] = {
    "last row": {},
    "wal": {"changelog_image": "wal"},
    "first row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": kvstore.Versioned("v")},
    "aggregate": {"merge_engine": kvstore.Aggregate({"v": "sum", "s": "max"})},
    "ids": {"schema": WITH_ID, "auto_increment": "id"},
}
KEY, VALUE = st.integers(0, KEYS - 1), st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.dictionaries(KEY, VALUE, min_size=1, max_size=5)),
        st.tuples(st.just("delete"), KEY),
        st.tuples(st.just("columns"), KEY),
        st.tuples(st.just("epoch"), KEY),
        st.tuples(st.just("transaction"), KEY),
        st.tuples(st.just("column"), st.none()),
        st.tuples(st.just("index"), st.booleans()),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("kill"), st.integers(0, 4)),
    ),
    max_size=14,
)


@contextmanager
def opened(path: Path) -> Iterator[kvstore.Store]:
    with Store(path, StoreOptions(**NEVER_DUE), clock=SetClock()) as store:
        yield store


def do(store: kvstore.Store, number: int, step: tuple[str, Any], kind: str) -> object:
    """A step, and what it answers."""
    table = store.table("t")
    name, given = step
    try:
        match name:
            case "upsert":
                rows = [{"k": k, "v": v, "s": f"{number}-{v}"} for k, v in given.items()]
                return table.upsert(rows)
            case "delete":
                return table.delete([given])
            case "columns":
                return table.upsert([{"k": given, "s": "only"}], columns=["k", "s"])
            case "epoch":
                row = {field.name: None for field in table.schema} | {"k": given, "v": 1, "s": str(number)}
                changes = kvstore.Changes.of([("upsert", row)], table.schema)
                epoch = next(epoch for epoch in range(number + 1) if not table.is_applied("w", epoch))
                return [table.apply_epoch(changes, "w", epoch, "r").duplicated for _ in range(2)]
            case "transaction":
                with store.transaction() as tx:
                    tx.upsert("t", {"k": given, "v": 9, "s": "both"})
                    tx.upsert("other", {"k": given, "v": number, "s": "both"})
                return None
            case "column":
                return store.add_columns("t", [pa.field(f"x{number}", pa.int32())])
            case "index":
                return store.create_index("t", f"by{number}", ["v"] if not given else ["s", "k"], unique=given)
            case _:
                return store.flush()
    except (InvalidRequest, UniqueViolation, UnsupportedOperation) as error:
        return type(error)


def content(store: kvstore.Store) -> object:
    table, other = store.table("t"), store.table("other")
    tables = [each.scan().read_all().to_pylist() for each in (table, other)]
    counted = [each for each in (table, other) if each.options.changelog_image == "full"]
    counts = [each.count() for each in counted]
    changes = [each.changelog(0).read_all().to_pylist() for each in counted]
    found = [table.scan(filter=pc.field("v") == v).read_all().to_pylist() for v in (0, 1, 9)]
    return tables, counts, changes, found


def killed(store: kvstore.Store, path: Path, slices: int) -> None:
    """Copy a store as a process leaves it that is killed after so many slices of a merge."""
    merge_slice, left = Memtable.merge_slice, [slices]

    def and_copy(self: Memtable, share: float = 1.0) -> bool:
        is_whole = merge_slice(self, share)
        left[0] -= 1
        if left[0] == 0:
            shutil.copytree(store.path, path)
        return is_whole

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memtable, "merge_slice", and_copy)
        if slices:
            store.flush()
    if not path.exists():
        shutil.copytree(store.path, path)


@given(kind=st.sampled_from(sorted(TABLES)), steps=STEPS)
@settings(max_examples=10)
def test_a_table_goes_on_like_one_whose_process_was_never_killed(kind: str, steps: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        for name in ("SLICE_ROWS", "SLICE_ROWS_MAX"):
            patch.setattr(memtable, name, 2)
        paths = [Path(directory, "twin"), Path(directory, "0")]
        for path in paths:
            with opened(path) as store:
                store.create_table("t", **({"schema": SCHEMA, "primary_key": "k"} | TABLES[kind]))
                store.create_table("other", SCHEMA, "k")
        stores = [Store(path, StoreOptions(**NEVER_DUE), clock=SetClock()) for path in paths]
        dead = []
        try:
            for number, step in enumerate([*steps, ("kill", 1), ("upsert", {0: 1, 1: 1})]):
                if step[0] != "kill":
                    assert do(stores[0], number, step, kind) == do(stores[1], number, step, kind)
                    continue
                path = Path(directory, f"after-{number}")
                killed(stores[1], path, step[1])
                dead.append(stores[1])
                with kvstore.open(path, read_only=True) as reader:
                    assert content(reader) == content(stores[0])
                stores[1] = Store(path, StoreOptions(**NEVER_DUE), clock=SetClock())
                if step[1] % 2:
                    assert content(stores[1]) == content(stores[0])
            assert content(stores[1]) == content(stores[0])
            assert all(store.check().ok for store in stores)
        finally:
            for store in [*dead, *stores]:
                store.close()


def test_a_slice_is_no_larger_because_a_merge_was_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other row that the index has is written again before the kill, so each of its slices is stored in part."""
    bytes_max, put, sizes = 1000, Index.put, list[int]()
    monkeypatch.setattr(memtable, "SLICE_BYTES", bytes_max)

    def and_measure(self: Index, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        sizes.append(sum(map(len, values)))
        put(self, keys, values)

    rows = [{"k": k, "v": k, "s": "s" * 100} for k in range(100)]
    with opened(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(rows)
        killed(store, tmp_path / "half", 10)
    with monkeypatch.context() as patch, opened(tmp_path / "half") as store:
        patch.setattr(Memtable, "merge_slice", lambda *_: True)
        store.table("t").upsert([row | {"v": -1} for row in rows[::2]])
        killed(store, tmp_path / "again", 0)
        patch.undo()
    monkeypatch.setattr(Index, "put", and_measure)
    with opened(tmp_path / "again") as store:
        store.table("t").upsert(rows[:1])
        store.flush()
        assert store.table("t").count() == len(rows)
        assert store.check().ok
    assert len(sizes) > 5
    assert max(sizes) < 3 * bytes_max
