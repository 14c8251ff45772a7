"""A replica follows the retention of the tables: it stays small, and restores every time that it keeps."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket import maintenance
from kvstore.bucket.maintenance import Maintenance
from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest, ReplicaBehind, Unavailable
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.replica.check import missing
from kvstore.replica.read.restore import Restore
from kvstore.replica.read.tail import ReplicaTail
from kvstore.replica.replica import MAINTENANCE_SECONDS
from kvstore.replica.ship.retention import Retention as ReplicaRetention
from kvstore.replica.source import Source
from kvstore.store.runtime import StoreRuntime
from kvstore.store.store import Store
from kvstore.table.open_table import OpenTable
from logformat.catalog.replicas import CATALOG, Finding, Stream
from logformat.ids import BucketId, TableId
from logformat.replica import manifest as replica_manifest, retention as retention_object
from logformat.replica.object_file import parse_name
from logformat.replica.retention import Retention
from tests.replica.followers import follower
from tests.replica.objects import SCHEMA, Objects, replica_of, restored, save_image
from tests.support.clocks import SetClock
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of

VALUES = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
MINUTE_MS = 60_000
KEPT = dt.timedelta(minutes=10)
BUCKET = Stream(TableId(1), BucketId(0))


class Timed(Objects):
    """Objects that know when they were written."""

    def __init__(self, clock: SetClock, held: dict[str, bytes] | None = None) -> None:
        super().__init__(held)
        self._clock = clock

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        self.modified.setdefault(name, self._clock.now_ms())
        return super().create(name, pieces)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.held.values()))


class History:
    """A store whose tables' changes expire after ten minutes of a clock that is set, with a replica in memory."""

    def __init__(self, path: Path, seed: int = 1, *, retention: dt.timedelta | None = None, buckets: int = 1) -> None:
        self.clock = SetClock()
        self.random = Random(seed)
        self.path = path
        self.objects = Timed(self.clock)
        self.table: kvstore.Table
        self.open(buckets)
        if retention is not None:
            kept = Retention(retention_ms=retention // dt.timedelta(milliseconds=1))
            self.objects.held[retention_object.NAME] = retention_object.encode(kept)
        self.rows: dict[int, str] = {}
        self.states: list[tuple[int, dict[int, str]]] = []
        """The rows at each time at which something was written."""

    def open(self, buckets: int = 1) -> None:
        options = StoreOptions(segment_bytes_max=40_000, edits_per_journal=40)
        self.store = Store(self.path, options, clock=self.clock)
        if not self.store.list_tables():
            self.store.create_table("t", VALUES, "k", retention=KEPT, buckets=buckets)
        self.table = self.store.table("t")
        self.replica = replica_of(self.store, self.objects)

    def write(self) -> None:
        changed = {self.random.randrange(200): self.random.randbytes(200).hex() for _ in range(60)}
        self.table.upsert([{"k": k, "v": v} for k, v in changed.items()])
        self.rows |= changed
        self.states.append((self.clock.now, dict(self.rows)))

    def step(self, ms: int = MINUTE_MS) -> None:
        """Time passes, something is written, the log expires, and what is new is shipped."""
        self.clock.now += ms
        self.write()
        for bucket in range(self.table.buckets):
            self.table.bucket(bucket).handle.retain()
        self.replica.ship()
        if len(self.states) % 20 == 0:
            self.image()

    def image(self) -> None:
        save_image(self.store, self.clock.now)

    def go_on(self, minutes: int) -> None:
        for _ in range(minutes):
            self.step()

    def state_at(self, time_ms: int) -> dict[int, str]:
        return next((rows for at, rows in reversed(self.states) if at <= time_ms), {})

    def restored(self, path: Path, time_ms: int | None) -> dict[int, str]:
        target = None if time_ms is None else time_at(time_ms)
        restored(self.objects, path, target)
        with kvstore.open(path) as back:
            assert back.check()
            return {row["k"]: row["v"] for row in rows_of(back.table("t"))}

    @property
    def bytes(self) -> int:
        """Size of the store's files on its disk."""
        return sum(each.stat().st_blocks * 512 for each in self.path.rglob("*") if each.is_file())


def time_at(time_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=time_ms)


@pytest.fixture(autouse=True)
def _retention_on_request() -> Iterator[None]:
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        yield


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "s")
    yield made
    made.store.close()


def test_a_replica_stays_below_twice_the_store(history: History, tmp_path: Path) -> None:
    largest = shipped = 0.0
    objects = history.objects
    for _ in range(120):
        before = objects.held.keys()
        known = set(before)
        history.step()
        shipped += sum(len(objects.held[name]) for name in objects.held.keys() - known)
        largest = max(largest, objects.bytes / history.bytes)
    assert shipped > 6 * objects.bytes, "nothing had to be removed"
    assert largest <= 2
    assert history.replica.check()
    assert history.restored(tmp_path / "back", None) == history.rows
    assert len(objects.names) < 150


def test_a_replica_restores_every_time_that_its_tables_keep(history: History, tmp_path: Path) -> None:
    history.go_on(60)
    now = history.clock.now
    for number, ago in enumerate([0, 1, 5, 9, 10]):
        at = now - ago * MINUTE_MS
        assert history.restored(tmp_path / f"back{number}", at) == history.state_at(at)
    with pytest.raises(ReplicaBehind, match="starts after this time") as caught:
        history.restored(tmp_path / "none", now - 50 * MINUTE_MS)
    earliest = dt.datetime.fromisoformat(str(caught.value.where["earliest"]))
    assert time_at(now) - 4 * KEPT < earliest <= time_at(now) - KEPT
    at = int(earliest.timestamp() * 1000)
    assert history.restored(tmp_path / "earliest", at) == history.state_at(at)
    with pytest.raises(ReplicaBehind, match="starts after this offset"):
        restored(history.objects, tmp_path / "offset", {"t": {0: 1}})


def test_a_replica_with_a_longer_retention_restores_earlier_times(tmp_path: Path) -> None:
    history = History(tmp_path / "s", retention=dt.timedelta(minutes=40))
    history.go_on(120)
    now = history.clock.now
    for number, ago in enumerate([0, 10, 25, 39]):
        at = now - ago * MINUTE_MS
        assert history.restored(tmp_path / f"back{number}", at) == history.state_at(at)
    with pytest.raises(ReplicaBehind, match="starts after this time"):
        history.restored(tmp_path / "none", now - 100 * MINUTE_MS)
    assert history.replica.check()
    history.store.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_a_replica_with_any_retention_restores_what_it_promises(tmp_path: Path, seed: int) -> None:
    """Against a model: whatever is written, dropped, merged and shipped when, in one bucket or several."""
    random = Random(seed)
    own = random.choice([None, dt.timedelta(minutes=random.randrange(60))])
    history = History(tmp_path / "s", seed, retention=own, buckets=random.choice([1, 3]))
    kept_ms = max(KEPT, own or KEPT) // dt.timedelta(milliseconds=1)
    began, restores = history.clock.now, 0
    for step in range(60):
        history.step(random.choice([1, 20_000, MINUTE_MS, 3 * MINUTE_MS]))
        if random.random() < 0.1:
            history.store.create_table(f"u{step}", SCHEMA, "k").upsert([{"k": 1, "v": step}])
        if random.random() < 0.1 and len(names := history.store.list_tables()) > 1:
            history.store.drop_table(random.choice([name for name in names if name != "t"]))
        if random.random() < 0.06:
            now = history.clock.now
            at = now - random.randrange(min(kept_ms, now - began) + 1)
            assert history.restored(tmp_path / f"back{restores}", at) == history.state_at(at)
            restores += 1
    assert restores
    assert history.replica.check()
    assert history.restored(tmp_path / "last", None) == history.rows
    history.store.close()


def test_tables_that_were_dropped_long_ago_are_removed(history: History) -> None:
    history.store.create_table("dropped", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    history.step()
    history.store.drop_table("dropped")
    of_dropped = Stream(TableId(2), BucketId(0))
    history.go_on(5)
    assert any(name.stream == of_dropped for name in history.objects.names)
    history.go_on(90)
    assert not any(name.stream == of_dropped for name in history.objects.names)
    assert min(name.start for name in history.objects.names if name.stream == CATALOG)


def drop(pipe: Pipe, path: Path, name: str) -> None:
    with kvstore.open(path) as store:
        store.drop_table(name)
    pipe.send("dropped")


def test_a_table_that_another_process_drops_meanwhile_is_no_damage(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    history.store.create_table("dropped", SCHEMA, "k", retention=KEPT).upsert([{"k": 1, "v": 1}])
    history.step()
    kept_ms, open_table = ReplicaRetention.kept_ms, StoreRuntime.open_table
    done: list[str] = []

    def opened(runtime: StoreRuntime, definition: TableDefinition) -> OpenTable:
        table = open_table(runtime, definition)
        if definition.name == "dropped" and not done:
            with Child(drop, history.path, "dropped") as child:
                done.append(child.hear())
        return table

    with ExitStack() as patches:

        def maintained(retention: ReplicaRetention) -> int:
            patches.enter_context(patch.object(StoreRuntime, "open_table", opened))
            return kept_ms(retention)

        patches.enter_context(patch.object(ReplicaRetention, "kept_ms", maintained))
        history.step(2 * KEPT // dt.timedelta(milliseconds=1))
    assert done == ["dropped"]
    assert not caplog.records
    assert not history.replica.check().findings


def test_tables_without_a_retention_are_kept_whole(history: History, tmp_path: Path) -> None:
    forever = history.store.create_table("forever", SCHEMA, "k")
    for number in range(90):
        forever.upsert([{"k": 1, "v": number}])
        history.step()
        if number % 20 == 0:
            forever.snapshot()
    restored(history.objects, tmp_path / "back")
    with kvstore.open(tmp_path / "back") as back:
        assert back.table("forever").offsets() == forever.offsets()
        assert back.table("forever").offsets()[0][0] == 0


def missing_by_its_own_catalog(objects: Objects) -> list[Finding]:
    """What the catalog in a replica says was shipped, and the replica does not have."""
    _, state, edits = Source(objects).catalog()
    for edit in edits:
        state = state.after(edit)
    return list(missing(state.replicas["r"], objects.names)) if "r" in state.replicas else []


class Dies(Exception):
    pass


class Dying(Timed):
    """Its process dies at a request that changes something."""

    left = 10**9

    def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
        self._call()
        super().replace(name, pieces)

    def create(self, name: str, pieces: Sequence[bytes | memoryview]) -> bool:
        self._call()
        return super().create(name, pieces)

    def delete(self, name: str) -> None:
        self._call()
        super().delete(name)

    def _call(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Dies


def test_what_a_shipper_leaves_that_dies_is_removed_later(tmp_path: Path) -> None:
    history = History(tmp_path / "s")
    dying = Dying(history.clock, history.objects.held)
    died = 0
    history.go_on(25)
    for number in range(60):
        history.clock.now += MINUTE_MS
        history.write()
        history.table.bucket(0).handle.retain()
        if number % 10 == 0:
            history.store.create_table(f"u{number}", SCHEMA, "k")  # the catalog is shipped, with the reports before
        dying.left = number % 12
        try:
            replica_of(history.store, dying).ship()  # its first call retains
        except Dies:
            died += 1
        assert history.replica.check(), "the replica is whole at any time"
        assert not missing_by_its_own_catalog(history.objects), "a copy that is promoted now has a replica with holes"
    assert died > 20
    history.go_on(4)
    starts = {each.stream: each.start for each in history.store.runtime.catalog().replicas["r"].shipped}
    assert all(name.end > starts[name.stream] for name in history.objects.names if name.kind == "range")
    assert history.objects.bytes <= 2 * history.bytes
    assert history.restored(tmp_path / "back", None) == history.rows
    history.store.close()


class Pruned(Objects):
    """Objects that a reader has listed; when it reads some, the replica goes on."""

    def __init__(self, history: History, after: int, minutes: int) -> None:
        super().__init__(history.objects.held)
        self._history = history
        self._after = after
        self._minutes = minutes
        self.was = False
        self.manifests = 0

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        self.manifests += name == replica_manifest.NAME
        if (parsed := parse_name(name)) is not None and parsed.stream == BUCKET and not self.was:
            self._after -= 1
            if self._after < 0:
                self.was = True
                self._history.go_on(self._minutes)
        return super().get(name, bytes_max=bytes_max)


@pytest.mark.parametrize("after", [0, 3])
def test_a_restore_begins_again_if_its_objects_were_removed(history: History, tmp_path: Path, after: int) -> None:
    history.go_on(30)
    objects = Pruned(history, after, 40)
    Restore(objects, Files(), SetClock(), lambda _: None).run(tmp_path / "back", None)
    assert objects.was
    with kvstore.open(tmp_path / "back") as back:
        found = {row["k"]: row["v"] for row in rows_of(back.table("t"))}
    assert found == history.rows


def test_a_read_continues_with_the_range_into_which_its_objects_were_merged(history: History, tmp_path: Path) -> None:
    history.clock.now += MINUTE_MS
    for _ in range(40):
        history.write()
        history.replica.ship()
    before = set(history.objects.names)
    objects = Pruned(history, 1, 3)
    Restore(objects, Files(), SetClock(), lambda _: None).run(tmp_path / "back", None)
    assert objects.was
    assert len(before - set(history.objects.names)) > 30, "they were merged, and removed"
    assert objects.manifests == 2, "it did not have to begin again"


def test_a_follower_takes_up_a_replica_whose_objects_were_removed_while_it_read(
    history: History, tmp_path: Path
) -> None:
    history.go_on(30)
    objects = Pruned(history, 2, 40)
    while True:
        try:
            copy = follower(objects, tmp_path / "c")
            copy.pull()
            break
        except Unavailable:
            assert objects.was
    copy.close()
    assert objects.was
    with kvstore.open(tmp_path / "c", read_only=True) as back:
        assert {row["k"]: row["v"] for row in rows_of(back.table("t"))} == history.rows
        assert back.check()


@pytest.mark.parametrize("rounds", [4, pytest.param(20, marks=pytest.mark.long)])
def test_a_replica_that_is_open_in_place_is_read_on_while_its_start_moves(tmp_path: Path, rounds: int) -> None:
    history = History(tmp_path / "s", buckets=2)
    history.step()
    opened = kvstore.StoreInReplica(
        "memory://x", client=history.objects, directory=tmp_path / "cache", clock=history.clock
    )
    table = opened.table("t")
    for _ in range(rounds):
        for ms in (*range(10_000, 20_000, 2_000), 12 * MINUTE_MS):
            history.step(ms)
            table.changelog("latest").read_all()
            assert table.offsets() == ReplicaTail("", "t", history.objects).table.bounds()
        assert {row["k"]: row["v"] for row in rows_of(table)} == history.rows
        assert table.changelog("earliest").read_all().num_rows
    assert min(start for start, _ in table.offsets().values()) > 0, "nothing expired"
    opened.close()
    history.store.close()


def test_a_check_in_place_finds_nothing_wrong_while_objects_are_merged_and_removed(
    history: History, tmp_path: Path
) -> None:
    history.clock.now += MINUTE_MS
    for _ in range(40):
        history.write()
        history.replica.ship()
    for minutes in (3, 30):
        objects = Pruned(history, 1, minutes)
        opened = kvstore.StoreInReplica("memory://x", client=objects, directory=tmp_path / "cache")
        assert opened.check().findings == []
        assert objects.was
        opened.close()


def test_a_copy_that_was_promoted_has_a_whole_replica(history: History, tmp_path: Path) -> None:
    """The former leader removed objects; the copy's catalog knows that they are gone."""
    history.step()
    copy = follower(history.objects, tmp_path / "c", clock=history.clock, segment_bytes_max=40_000)
    for _ in range(60):
        history.step()
        if history.random.random() < 0.3:
            copy.pull()
    history.clock.now += 2 * 1000 * MAINTENANCE_SECONDS
    history.replica.ship()  # nothing is new, but something is removed
    history.store.close()
    copy.promote()
    history.path = tmp_path / "c"
    history.open()
    history.replica.ship()
    assert history.replica.check()
    at = history.clock.now - 9 * MINUTE_MS
    assert history.restored(tmp_path / "earlier", at) == history.state_at(at), "the new leader had to begin again"
    for _ in range(70):  # also while the objects of the former leader are removed
        history.step()
        if len(history.states) % 7 == 0:
            assert history.replica.check()
            Source(history.objects).path(BUCKET, history.table.offsets()[0][1])
    assert {name.epoch for name in history.objects.names} == {1}
    assert history.restored(tmp_path / "back", None) == history.rows


def test_a_retention_is_kept_in_the_replica(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        wrong: list[Any] = [dt.timedelta(-1), 7, "7d"]
        for each in wrong:
            with pytest.raises(InvalidRequest, match="retention"):
                store.add_replica(str(tmp_path / "r"), "r", retention=each)
        assert not store.replicas
        store.add_replica(str(tmp_path / "r"), "r", retention=dt.timedelta(days=30))
        store.drop_replica("r")
        store.add_replica(str(tmp_path / "r"), "r")
    found = retention_object.decode((tmp_path / "r" / "RETENTION").read_bytes())
    assert found == Retention(retention_ms=30 * 86_400_000)


def test_nothing_is_removed_if_the_retention_of_the_replica_is_damaged(history: History) -> None:
    history.go_on(15)
    history.objects.held[retention_object.NAME] = b"{}"
    before = {name for name in history.objects.names if name.kind == "snapshot"}
    with pytest.raises(kvstore.errors.CorruptData, match="RETENTION"):
        history.go_on(30)
    assert before <= set(history.objects.names)


def test_a_damaged_snapshot_of_the_catalog_stops_no_shipping(
    history: History, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history.go_on(40)
    (name, *_) = [name for name in history.objects.names if name.stream == CATALOG and name.kind == "snapshot"]
    history.objects.held[str(name)] = bytes(len(history.objects.held[str(name)]))
    history.replica = replica_of(history.store, history.objects)  # as in a process that has read nothing of it yet
    history.go_on(5)
    assert "until it is repaired" in caplog.text
    assert history.replica.report().behind == {"t": 0}
    assert [finding.stream for finding in history.replica.check().findings] == [CATALOG]
    history.replica.repair()
    history.go_on(5)
    assert history.replica.check().findings == []
    assert history.restored(tmp_path / "back", None) == history.rows
