"""What a store keeps of a long run stays bounded (R19): after a while more work brings no more bytes.

Files of LMDB never shrink, so their size is the most they ever needed.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from unittest.mock import patch

import pyarrow as pa
import pytest

from kvstore.bucket import maintenance
from kvstore.bucket.maintenance import Maintenance
from kvstore.clock import SystemClock
from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.log import retention
from kvstore.meta.journal import Journal
from kvstore.options import StoreOptions
from kvstore.store import held_indexes
from kvstore.store.store import Store
from logformat import paths
from tests.conftest import OpenStore
from tests.crash.conftest import Tell
from tests.proof.budget import Run, budget
from tests.support.clocks import SetClock
from tests.support.image_workers import Here
from tests.support.proof import Proves

FIGURE = "rounds of growth"
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
EDITS_PER_JOURNAL = 40
LOG_BYTES = 1 << 16
SPARE_BYTES = 1 << 18
SEGMENT_BYTES = 1 << 13
KEPT = dt.timedelta(minutes=3)
STEP_MS = 60_000
FIRST_PART = 0.25
"""After this share of the rounds everything has been done several times."""


def bytes_of(directory: Path) -> int:
    """Of all files below a directory but LMDB's tables of readers, whose size never changes and would hide growth."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != LMDB_FILES[1])
    return sum(path.stat().st_size for path in files)


def stays(
    rounds: int, work: Callable[[int], None], measured: Callable[[], dict[str, int]], **spare: int
) -> dict[str, tuple[int, int]]:
    """Work, and compare the most that was there early with the most later.

    Args:
        spare: By what is measured, how much more there may be at any time.

    Returns:
        Both, by what was measured.
    """
    early: dict[str, int] = {}
    late: dict[str, int] = {}
    for number in range(rounds):
        work(number)
        part = early if number < rounds * FIRST_PART else late
        for name, size in measured().items():
            part[name] = max(part.get(name, 0), size)
    for name, size in late.items():
        assert size <= early[name] * 1.5 + spare.get(name, 0), (
            f"{name} grows: {early[name]} bytes at first, {size} later"
        )
    return {name: (early[name], late[name]) for name in late}


def catalog_stays(open_store: OpenStore, path: Path, run: Run, tell: Tell, proves: Proves) -> None:
    """Consumers commit, writers get ids, tables come and go; images are made as they are due."""
    rounds = budget("growth", run)
    store = open_store(edits_per_journal=EDITS_PER_JOURNAL)
    store.runtime.checkpoints.start = Here
    table = store.create_table("t", SCHEMA, "k")
    consumer = store.consumer("c")

    def work(number: int) -> None:
        for _ in range(EDITS_PER_JOURNAL // 4):
            consumer.commit("t", {0: table.upsert([{"k": 1, "v": "x"}]).last_offset + 1})
            store.new_writer_id()
        if number % 10 == 0:
            store.create_table("passing", SCHEMA, "k")
            store.drop_table("passing")
        if number % 2:
            store.checkpoint()

    def measured() -> dict[str, int]:
        return {
            "journal": bytes_of(path / paths.JOURNAL),
            "images": bytes_of(path / paths.IMAGES),
            "names": len(list((path / "meta").rglob("*"))),
        }

    tell(f"catalog: {stays(rounds, work, measured)}")
    proves(FIGURE, rounds)


def bucket_stays(open_store: OpenStore, path: Path, run: Run, tell: Tell, proves: Proves) -> None:
    """The same keys get new values; the log expires by its size."""
    rounds = budget("growth", run)
    store = open_store(
        segment_bytes_max=SEGMENT_BYTES, log_bytes_max=LOG_BYTES, memtable_bytes=SEGMENT_BYTES, map_bytes=1 << 28
    )
    with patch.object(Maintenance, "begin"):
        table = store.create_table("t", SCHEMA, "k", compression=None)
        table.upsert([{"k": 0, "v": ""}])  # the bucket is written from here on
    place = path / "tables" / "1" / "0"

    def work(number: int) -> None:
        for part in range(4):
            table.upsert([{"k": k, "v": f"{number} {part}" * 20} for k in range(part, 400, 4)])
        table.flush()
        for bucket in range(table.buckets):
            table.bucket(bucket).handle.retain()

    def measured() -> dict[str, int]:
        return {name: bytes_of(place / name) for name in ("index", "log", "snapshots")}

    # When a thread of its own does it depends on how busy the machine is.
    with patch.object(maintenance, "REST_FACTOR", 0):
        # Some pages wait for a reader of the index at a moment that depends on threads.
        found = stays(rounds, work, measured, index=SPARE_BYTES)
    tell(f"bucket: {found}")
    assert found["log"][1] <= 2 * LOG_BYTES
    proves(FIGURE, rounds)


def scanned_index_stays(open_store: OpenStore, path: Path, run: Run, tell: Tell, proves: Proves) -> None:
    """In each round a scan holds the free pages of an index while it is written; health reports it until it ends."""
    rounds = budget("growth", run)
    store = open_store(map_bytes=1 << 28)
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": k, "v": "x" * 300} for k in range(2000)])

    def work(number: int) -> None:
        scan = iter(table.scan())
        next(scan)
        for part in range(4):
            table.upsert([{"k": k, "v": f"{number} {part}" * 60} for k in range(part, 2000, 4)])
            store.flush()
        (held,) = store.health().held
        assert (held.table, held.pid) == ("t", os.getpid())
        assert held.held_bytes
        assert held.since_ms is not None
        del scan
        assert not store.health().held

    with patch.object(held_indexes, "LOOK_BYTES", 1):
        found = stays(rounds, work, lambda: {"scanned index": bytes_of(path / "tables" / "1" / "0" / "index")})
    tell(f"scans: {found}")
    table.compact()
    proves(FIGURE, rounds)


def replica_stays(open_clocked: Callable[..., Store], work: Path, run: Run, tell: Tell, proves: Proves) -> None:
    """Changes of a table expire, and are shipped before that; the replica has at most twice what the store has."""
    rounds = budget("growth", run)
    clock = SetClock(SystemClock().now_ms())  # not before the times of the replica's files
    store = open_clocked(clock)
    store.runtime.checkpoints.start = Here
    with patch.object(Maintenance, "begin"):
        table = store.create_table("t", SCHEMA, "k", compression=None, retention=KEPT)
        table.upsert([{"k": 0, "v": ""}])  # the bucket is written from here on
    replica = store.add_replica(f"file://{work / 'replica'}")
    replica.ship()
    random = Random(rounds)

    def step(number: int) -> None:
        clock.now += STEP_MS
        table.upsert([{"k": random.randrange(200), "v": random.randbytes(200).hex()} for _ in range(60)])
        for handle in [table.bucket(each).handle for each in range(table.buckets)]:
            handle.retain()
        replica.ship()
        if number % 4 == 3:
            store.checkpoint()

    def measured() -> dict[str, int]:
        return {"replica": bytes_of(work / "replica"), "store": bytes_of(work / "store")}

    with patch.object(maintenance, "REST_FACTOR", 0):
        found = stays(rounds, step, measured)
    tell(f"replica: {found}")
    assert found["replica"][1] <= 2 * found["store"][1]
    assert not replica.check().findings
    proves(FIGURE, rounds)


def test_a_catalog_stays_bounded(open_store: OpenStore, store_path: Path, tell: Tell, proves: Proves) -> None:
    catalog_stays(open_store, store_path, "quick", tell, proves)


def test_a_bucket_stays_bounded(open_store: OpenStore, store_path: Path, tell: Tell, proves: Proves) -> None:
    bucket_stays(open_store, store_path, "quick", tell, proves)


@pytest.mark.nightly
def test_a_catalog_stays_bounded_for_long(open_store: OpenStore, store_path: Path, tell: Tell, proves: Proves) -> None:
    catalog_stays(open_store, store_path, "nightly", tell, proves)


@pytest.mark.nightly
def test_a_bucket_stays_bounded_for_long(open_store: OpenStore, store_path: Path, tell: Tell, proves: Proves) -> None:
    bucket_stays(open_store, store_path, "nightly", tell, proves)


@pytest.mark.long
def test_a_journal_that_is_never_dropped_is_found(
    open_store: OpenStore, store_path: Path, tell: Tell, proves: Proves
) -> None:
    """Planted: images replace nothing."""
    with patch.object(Journal, "drop_before"), pytest.raises(AssertionError, match="journal grows"):
        catalog_stays(open_store, store_path, "quick", tell, proves)


@pytest.mark.long
def test_a_log_that_never_expires_is_found(open_store: OpenStore, store_path: Path, tell: Tell, proves: Proves) -> None:
    """Planted: retention removes nothing."""
    with patch.object(retention, "remove_before"), pytest.raises(AssertionError, match="log grows"):
        bucket_stays(open_store, store_path, "quick", tell, proves)


def test_a_scanned_index_stays_bounded(open_store: OpenStore, store_path: Path, tell: Tell, proves: Proves) -> None:
    scanned_index_stays(open_store, store_path, "quick", tell, proves)


@pytest.mark.nightly
def test_a_scanned_index_stays_bounded_for_long(
    open_store: OpenStore, store_path: Path, tell: Tell, proves: Proves
) -> None:
    scanned_index_stays(open_store, store_path, "nightly", tell, proves)


@pytest.fixture
def open_clocked(store_path: Path) -> Iterator[Callable[..., Store]]:
    """Opens the test's store with a clock."""
    with ExitStack() as stack:
        yield lambda clock: stack.enter_context(
            Store(store_path, StoreOptions(segment_bytes_max=40_000, edits_per_journal=40), clock=clock)
        )


def test_a_replica_stays_bounded(
    open_clocked: Callable[..., Store], tmp_path: Path, tell: Tell, proves: Proves
) -> None:
    replica_stays(open_clocked, tmp_path, "quick", tell, proves)


@pytest.mark.nightly
def test_a_replica_stays_bounded_for_long(
    open_clocked: Callable[..., Store], tmp_path: Path, tell: Tell, proves: Proves
) -> None:
    replica_stays(open_clocked, tmp_path, "nightly", tell, proves)
