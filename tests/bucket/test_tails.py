"""What a log has and its index lacks: the next writer takes it into its memtable, and merges it later."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.bucket import committer, engine, write_path
from kvstore.bucket.merge import native, replay, tail
from kvstore.bucket.recovery import open_for_writing
from kvstore.errors import CorruptData
from kvstore.index.index import Index
from kvstore.memtable import budget, memtable, run, view
from kvstore.memtable.memtable import Memtable
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.log import index_state
from tests.support.clocks import SetClock
from tests.support.tables import rows_of

NEVER_DUE: dict[str, Any] = {"commit_wait_ms": 3_600_000, "commit_idle_ms": 3_600_000, "segment_bytes_max": 2000}
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64()), pa.field("s", pa.string())])
INDEX = Path("tables/1/0/index")
KEYS = 12
Batch = dict[int, int | None]
"""The value that each key gets, None for one that is deleted."""
BATCHES = st.lists(st.dictionaries(st.integers(0, KEYS - 1), st.none() | st.integers(0, 3), max_size=6), max_size=12)


def write(table: kvstore.Table, batch: Batch, model: dict[int, int]) -> None:
    put = {k: v for k, v in batch.items() if v is not None}
    table.upsert([{"k": k, "v": v, "s": "s" * k} for k, v in put.items()] or pa.RecordBatch.from_pylist([], SCHEMA))
    if gone := [k for k, v in batch.items() if v is None]:
        table.delete(gone)
    model |= put
    for k in gone:
        model.pop(k, None)


def values(table: kvstore.Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in rows_of(table)}


def contents(path: Path) -> dict[bytes, bytes]:
    """Every key and value of the bucket's index."""
    with lmdb.open(str(path / INDEX), readonly=True, lock=False) as environment, environment.begin() as view:
        return dict(view.cursor())


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[kvstore.Store]:
    with Store(path, StoreOptions(**NEVER_DUE, **options), clock=SetClock()) as store:
        yield store


@contextmanager
def after_each_slice(look: Callable[[], object]) -> Iterator[None]:
    merge_slice = Memtable.merge_slice

    def and_look(self: Memtable, share: float = 1.0) -> bool:
        is_whole = merge_slice(self, share)
        look()
        return is_whole

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memtable, "merge_slice", and_look)
        yield


@given(
    merged=BATCHES,
    batches=BATCHES,
    slices=st.integers(0, 3),
    image=st.sampled_from(["full", "wal"]),
    limits=st.sampled_from([(1, 2), (600, 1000), (1 << 20, 1000)]),
    memory=st.sampled_from([300, None]),
)
@settings(max_examples=40)
def test_the_index_is_what_it_would_have_been(
    merged: list[Batch],
    batches: list[Batch],
    slices: int,
    image: str,
    limits: tuple[int, int, int],
    memory: int | None,
) -> None:
    """Byte for byte: rows, writers, and the state with its row count and digest; also after a part of a merge."""
    model: dict[int, int] = {}
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        for name in ("SLICE_ROWS", "SLICE_ROWS_MAX"):
            patch.setattr(memtable, name, 2)
        whole = Path(directory, "whole")
        kept = [Path(directory, "0")]
        with opened(whole) as store:
            table = store.create_table("t", SCHEMA, primary_key="k", changelog_image=image)
            for number, batch in enumerate([*merged, *batches]):
                if number == len(merged):
                    store.flush()
                    table.bucket(0).apply(kvstore.Changes.of([], SCHEMA), writer_id=7, sequence=0)
                write(table, batch, model)
            shutil.copytree(whole, kept[0])

            def keep() -> None:
                kept.append(Path(directory, str(len(kept))))
                shutil.copytree(whole, kept[-1])

            with after_each_slice(keep):
                store.flush()
            table.upsert({"k": KEYS, "v": 0, "s": ""})
        killed = kept[min(slices, len(kept) - 1)]
        for name, limit in zip(("TOGETHER_BYTES", "DECODED_BYTES"), limits, strict=True):
            patch.setattr(tail, name, limit)
        patch.setattr(replay, "FOUND_KEYS", limits[-1])
        patch.setattr(run, "JOINED_BYTES", 50 * limits[0])
        for module in (run, view):
            patch.setattr(module, "FEW_KEYS", 1)
        with opened(killed, memtable_bytes=memory) as store:
            table = store.table("t")
            table.upsert({"k": KEYS, "v": 0, "s": ""})
            assert values(table) == model | {KEYS: 0}
            assert [(table.get(k) or {"v": None})["v"] for k in range(KEYS)] == [model.get(k) for k in range(KEYS)]
            assert store.check().ok
        assert contents(killed) == contents(whole)


def killed_with_a_tail(path: Path, rows: int) -> Path:
    """A copy of a store as its process has left it that was killed before a merge."""
    with opened(path) as store:
        store.create_table("t", SCHEMA, primary_key="k").upsert([{"k": k, "v": k, "s": "s"} for k in range(rows)])
        shutil.copytree(path, killed := path.with_name("killed"))
    return killed


def test_the_first_write_does_not_wait_until_all_is_merged(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the rows take more than what one bucket's memtable may take."""
    killed = killed_with_a_tail(store_path, 200)
    monkeypatch.setattr(budget, "BUCKET_BYTES_MAX", 4_000)
    for name in ("SLICE_ROWS", "SLICE_ROWS_MAX"):
        monkeypatch.setattr(memtable, name, 10)
    slices: list[None] = []
    with opened(killed) as store, after_each_slice(lambda: slices.append(None)):
        table = store.table("t")
        table.upsert({"k": 0, "v": 1, "s": ""})
        assert len(slices) < 10
        assert values(table) == {k: k or 1 for k in range(200)}
        for k in range(1, 40):
            table.upsert({"k": k, "v": 1, "s": ""})
        assert len(slices) >= 20, "the merge is complete before memory is"
        assert values(table) == {k: 1 if k < 40 else k for k in range(200)}
        assert store.check().ok


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_what_is_not_merged_when_a_store_is_closed_stays_in_the_log(
    store_path: Path, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "CLOSE_SECONDS", 0.0)
    for name in ("SLICE_ROWS", "SLICE_ROWS_MAX"):
        monkeypatch.setattr(memtable, name, 1)
    with opened(store_path, durability=durability) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        table.upsert([{"k": k, "v": k, "s": ""} for k in range(3)])
    assert sum(key.startswith(b"\2") for key in contents(store_path)) == 1
    with kvstore.open(store_path, read_only=True) as reader:
        assert values(reader.table("t")) == {0: 0, 1: 1, 2: 2}
    with opened(store_path, durability=durability) as store:
        assert values(store.table("t")) == {0: 0, 1: 1, 2: 2}
        store.table("t").upsert({"k": 3, "v": 3, "s": ""})
        assert store.table("t").count() == 4
        assert store.check().ok


def test_repetitive_rows_are_not_decoded_all_together(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their batches take a small part of that in the log."""
    text, limit = "again and again " * 50, 1_000_000
    for module in (native, write_path):
        monkeypatch.setattr(module, "COMPRESSED_RECORDS_MIN", 1)
    with opened(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", compression="zstd")
        for first in range(0, 10_000, 500):
            table.upsert([{"k": k, "v": k, "s": text} for k in range(first, first + 500)])
        table.upsert([{"k": k, "v": -1, "s": text} for k in range(0, 10_000, 20)])
        shutil.copytree(store_path, killed := store_path.with_name("killed"))
    log = sum(file.stat().st_size for file in killed.glob("tables/1/0/log/*.log"))
    assert log < limit // 4
    decoded: list[int] = []
    final_rows = tail.final_rows

    def and_note(
        definition: Any, schema_id: Any, given: Sequence[replay.FinalChanges], *again: Any
    ) -> replay.FinalRows:
        decoded.append(sum(each.rows.nbytes for each in given))
        return final_rows(definition, schema_id, given, *again)

    monkeypatch.setattr(tail, "final_rows", and_note)
    monkeypatch.setattr(tail, "DECODED_BYTES", limit, raising=False)
    with opened(killed) as store:
        store.table("t").upsert({"k": 10_000, "v": 1, "s": ""})
        assert values(store.table("t")) == {k: k if k % 20 else -1 for k in range(10_000)} | {10_000: 1}
        assert store.check().ok
    assert len(decoded) >= 8
    assert max(decoded) <= limit


def test_short_sessions_make_progress(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stores a slice, however little time it has when it is closed, and none that the index has already."""
    monkeypatch.setattr(committer, "CLOSE_SECONDS", 0.0)
    for name in ("SLICE_ROWS", "SLICE_ROWS_MAX"):
        monkeypatch.setattr(memtable, name, 5)
    with opened(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", indexes={"by_v": "v"})
        table.upsert([{"k": k, "v": k, "s": ""} for k in range(60)])
        end = table.offsets()[0][1]
    counts, expected = [0], {k: k for k in range(60)}
    while index_state.decode(contents(store_path)[b"\0"]).applied_offset < end:
        with opened(store_path) as store:
            table = store.table("t")
            table.upsert({"k": -len(counts), "v": 0, "s": ""})
            table.delete([3 * len(counts)])
        expected[-len(counts)] = 0
        expected.pop(3 * len(counts), None)
        counts.append(sum(key.startswith(b"\2") for key in contents(store_path)))
        assert len(counts) < 20
    assert len(counts) > 4
    assert sorted(counts) == counts
    with opened(store_path) as store:
        table = store.table("t")
        assert values(table) == expected
        assert table.find(v=50).column("k").to_pylist() == [50]
        assert store.check().ok


def test_a_close_after_a_long_tail_merges_for_a_short_time(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest stays in the log."""
    killed = killed_with_a_tail(store_path, 60)
    monkeypatch.setattr(committer, "CLOSE_SECONDS", 0.0)
    for name in ("SLICE_ROWS", "SLICE_ROWS_MAX"):
        monkeypatch.setattr(memtable, name, 5)
    with opened(killed) as store:
        store.table("t").upsert({"k": 60, "v": 60, "s": ""})
    assert 0 < sum(key.startswith(b"\2") for key in contents(killed)) <= 10
    with opened(killed) as store:
        assert values(store.table("t")) == {k: k for k in range(61)}
        store.flush()
        assert store.check().ok


def test_an_index_that_can_not_be_stored_in_is_rebuilt(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage of a page that no read meets."""
    killed = killed_with_a_tail(store_path, 20)
    damaged, put = (killed / INDEX / "data.mdb").stat().st_ino, Index.put

    def and_fail(self: Index, *given: Any) -> None:
        if (Path(self.environment.directory) / "data.mdb").stat().st_ino == damaged:
            raise lmdb.CorruptedError("a page is damaged")
        put(self, *given)

    monkeypatch.setattr(Index, "put", and_fail)
    with opened(killed) as store:
        store.table("t").upsert({"k": 20, "v": 20, "s": ""})
        store.flush()
        assert values(store.table("t")) == {k: k for k in range(21)}
        assert store.check().ok


def test_an_index_with_damage_that_only_a_later_slice_meets_is_rebuilt_when_the_bucket_is_closed(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = killed_with_a_tail(store_path, 20)
    for name in ("SLICE_ROWS", "SLICE_ROWS_MAX"):
        monkeypatch.setattr(memtable, name, 5)
    damaged, put, met = (killed / INDEX / "data.mdb").stat().st_ino, Index.put, []

    def and_fail(self: Index, keys: Sequence[bytes], rows: Sequence[bytes]) -> None:
        if len(keys) < 5 or keys[0][-1] >= 10:
            met.append((Path(self.environment.directory) / "data.mdb").stat().st_ino)
            if met[-1] == damaged:
                raise lmdb.CorruptedError("a page is damaged")
        put(self, keys, rows)

    monkeypatch.setattr(Index, "put", and_fail)
    with opened(killed) as store:
        table = store.table("t")
        table.upsert({"k": 20, "v": 20, "s": ""})
        assert not met
        with pytest.raises(CorruptData, match="a page is damaged"):
            store.flush()
        table.upsert({"k": 21, "v": 21, "s": ""})
        assert values(table) == {k: k for k in range(22)}
    assert {*met} > {damaged}
    met.clear()
    with opened(killed) as store:
        assert values(store.table("t")) == {k: k for k in range(22)}
        assert store.check().ok
        store.table("t").upsert({"k": 22, "v": 22, "s": ""})
        store.flush()
        assert damaged not in met
        assert store.check().ok


def test_recoveries_share_the_memory_of_their_store(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room beside the tail of another bucket is merged when its bucket is opened."""
    rows = [{"k": k, "v": k, "s": ""} for k in range(200)]
    with opened(store_path) as store:
        for name in "ab":
            store.create_table(name, SCHEMA, primary_key="k").upsert(rows)
        shutil.copytree(store_path, killed := store_path.with_name("killed"))
    monkeypatch.setattr(memtable, "SLICE_ROWS", 10)
    sizes: list[int] = []

    def and_note(*given: Any) -> write_path.WritePath:
        path = open_for_writing(*given)
        sizes.append(path.memtable.published.size)
        return path

    monkeypatch.setattr(engine, "open_for_writing", and_note)
    with opened(killed, memtable_bytes=15_000) as store:
        for name in "ab":
            store.table(name).upsert({"k": 200, "v": 200, "s": ""})
            assert values(store.table(name)) == {k: k for k in range(201)}
        assert store.check().ok
    assert 7_500 < sizes[0] < 15_000
    assert sizes[1] == 0
