"""Rows that the native kernel encodes leave the same bytes in log and index as those that Python encodes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.bucket import write_path
from kvstore.bucket.merge import native
from kvstore.errors import CorruptData
from kvstore.kernel import library, writes
from kvstore.kernel.changes import ChangeMaker
from kvstore.memtable import memtable
from kvstore.memtable.memtable import Memtable
from kvstore.request import encoded
from kvstore.testing import strategies
from tests.support.small_writes import applied, store_at, written
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string()), pa.field("f", pa.float64())])


@contextmanager
def noticed() -> Iterator[list[int]]:
    """Numbers of the change records that the kernel made."""
    counts: list[int] = []

    def counting(make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **more: Any) -> Any:
            found = make(*arguments, **more)
            counts.append(0 if found is None else found.records)
            return found

        return counted

    with (
        mock.patch.object(ChangeMaker, "make", counting(ChangeMaker.make)),
        mock.patch.object(ChangeMaker, "make_few", counting(ChangeMaker.make_few)),
        mock.patch.object(encoded, "ROWS_MAX", -1),
    ):
        yield counts


@st.composite
def histories(draw: st.DrawFn) -> tuple[pa.Schema, list[str], dict[str, Any], list[tuple[Any, ...]]]:
    """A table's columns, key and options, and numbered batches of changes, in which keys meet again."""
    keys = draw(st.lists(st.sampled_from(strategies.KEY_TYPES), min_size=1, max_size=2))
    others = draw(st.lists(st.sampled_from(strategies.SCALAR_TYPES), max_size=10))
    fields = [pa.field(f"k{nth}", kind, False) for nth, kind in enumerate(keys)]
    fields += [pa.field(f"c{nth}", kind, draw(st.booleans())) for nth, kind in enumerate(others)]
    schema = pa.schema(draw(st.permutations(fields)))
    options = {
        "changelog_image": draw(st.sampled_from(["full", "full", "wal"])),
        "buckets": draw(st.sampled_from([1, 1, 3])),
        "compression": draw(st.sampled_from(["lz4", "zstd", None])),
        "merge_engine": draw(st.sampled_from(["last_row", "last_row", "first_row"])),
        "skip_identical_updates": draw(st.sampled_from([False, False, True])),
    }
    size = draw(st.integers(3, 12))
    columns = [draw(strategies.columns(field.type, size, nullable=field.nullable)) for field in schema]
    pool = pa.RecordBatch.from_arrays(columns, schema=schema)
    random = Random(draw(st.integers(0, 1 << 30)))
    batches: list[tuple[Any, ...]] = [(pool, [False] * size, (-1, -1, 0), False)]
    for _ in range(draw(st.integers(1, 4))):
        places = [random.randrange(size) for _ in range(random.choice([0, 1, 2, 8, 20]))]
        is_delete = [random.random() < 0.2 for _ in places]
        numbers = draw(st.just((-1, -1, 0)) | st.tuples(st.integers(1, 2), st.integers(0, 2), st.sampled_from([0, 1])))
        batches.append((pool.take(pa.array(places, pa.int64())), is_delete, numbers, draw(st.booleans())))
    # Whole rows as they came: they may be slices, with garbage under their nulls.
    batches.append((pool, [False] * size, (-1, -1, 0), False))
    return schema, [f"k{nth}" for nth in range(len(keys))], options, batches


@settings(max_examples=settings().max_examples // 2)
@given(history=histories(), compressed_min=st.sampled_from([1, 8, 4096]), run_keys=st.sampled_from([1, 6, 4096]))
def test_log_and_index_have_the_bytes_of_python(
    history: Any, compressed_min: int, run_keys: int, tmp_path_factory: Any
) -> None:
    schema, key, options, batches = history
    path = tmp_path_factory.mktemp("stores")
    found = []
    for name, way in (("with", nullcontext()), ("without", library.switched_off())):
        with (
            way,
            noticed(),
            mock.patch.object(write_path, "COMPRESSED_RECORDS_MIN", compressed_min),
            mock.patch.object(native, "COMPRESSED_RECORDS_MIN", compressed_min),
            mock.patch.object(native, "RUN_KEYS", run_keys),
            # A few rows are not compressed.
            mock.patch.object(writes, "FEW_ROWS_MAX", writes.FEW_ROWS_MAX if compressed_min == 4096 else 0),
            mock.patch.object(memtable, "FEW_KEYS", min(run_keys, 128)),
            store_at(path / name) as store,
        ):
            table = store.create_table("t", schema, key, **options)
            found.append((applied(table, batches), written(table)))
    assert found[0] == found[1]


def batch_of(text: str | None, count: int = 100) -> pa.RecordBatch:
    rows = [{"k": nth * 7 % count, "s": text, "f": None if nth % 3 else 0.5} for nth in range(count)]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def test_whole_rows_of_flat_columns_take_the_native_way(store: kvstore.Store) -> None:
    if library.kernel() is None:
        return
    table, nested = store.create_table("t", SCHEMA, "k"), SCHEMA.append(pa.field("l", pa.list_(pa.int8())))
    with noticed() as counts:
        table.upsert(batch_of("a"))
        table.upsert(batch_of(None))
        assert counts == [100, 200]
        other = store.create_table("nested", nested, "k")
        other.upsert(batch_of("a"))
        other.upsert(batch_of("b"))
        assert counts == [100, 200]
    assert {row["s"] for row in rows_of(table)} == {None}


def test_stored_rows_of_an_earlier_schema_have_the_bytes_of_python(tmp_path: Path) -> None:
    found = []
    for name, way in (("with", nullcontext()), ("without", library.switched_off())):
        with way, store_at(tmp_path / name) as store:
            table = store.create_table("t", SCHEMA, "k")
            table.upsert(batch_of("a"))
            store.add_columns("t", pa.schema([pa.field("n", pa.int32())]))
            table.upsert(batch_of("b", 60))
            table.upsert(batch_of("c"))
            table.upsert(batch_of("d"))
            found.append(written(table))
    assert found[0] == found[1]


def test_damage_is_found(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert(batch_of("a"))

    def other_rows(read: Callable[..., Any]) -> Callable[..., Any]:
        def swapped(*given: Any) -> Any:
            rows = read(*given)
            assert isinstance(rows, list)
            rows[3] = rows[4]  # right by itself, but under another key
            return rows

        return swapped

    with monkeypatch.context() as patch:
        for name in ("get", "stored"):
            patch.setattr(Memtable, name, other_rows(getattr(Memtable, name)))
        with pytest.raises(CorruptData, match="fail their checksum"):
            table.upsert(batch_of("b"))
    assert {row["s"] for row in rows_of(table)} == {"a"}
    table.upsert(batch_of("c"))
    assert {row["s"] for row in rows_of(table)} == {"c"}


def test_what_lies_under_nulls_goes_where_python_puts_it(tmp_path: Path) -> None:
    """With few stored rows, Arrow writes the columns of a batch as they came."""
    floats = strategies.under_nulls(pa.array([1.5, 2.5, 3.5, 4.5]), [False, True, True, False])
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2, 3, 4]), pa.array(list("abcd")), floats], schema=SCHEMA)
    found = []
    for name, way in (("with", nullcontext()), ("without", library.switched_off())):
        with way, noticed(), store_at(tmp_path / name) as store:
            for stored in range(4):
                table = store.create_table(f"t{stored}", SCHEMA, "k")
                table.upsert(rows.slice(0, stored))
                table.upsert(rows)
                found.append(written(table))
    assert found[:4] == found[4:]


def test_a_log_that_one_way_wrote_is_replayed_by_the_other(tmp_path: Path) -> None:
    """A copy of a store that is open is what a kill leaves."""
    found: list[Any] = []
    ways: dict[str, Callable[[], Any]] = {"with": nullcontext, "without": library.switched_off}
    for name, way in ways.items():
        with way(), noticed(), store_at(tmp_path / name) as store:
            table = store.create_table("t", SCHEMA, "k")
            for nth in range(4):
                rows = batch_of("ab"[nth % 2] * nth, 60 + 10 * nth)
                table.apply(kvstore.Changes(rows, [row % 7 == nth for row in range(len(rows))]))
            shutil.copytree(tmp_path / name, tmp_path / f"{name}, killed")
            found.append(written(table))
    for name in ways:
        for other, way in ways.items():
            shutil.copytree(tmp_path / f"{name}, killed", path := tmp_path / f"{name}, then {other}")
            with way(), mock.patch.object(writes, "encode", wraps=writes.encode) as encode, store_at(path) as store:
                table = store.table("t")
                table.bucket(0).handle.write()
                found.append(written(table))
            replayed_natively = other == "with" and library.kernel() is not None
            assert encode.called == replayed_natively
    assert all(each == found[0] for each in found)
