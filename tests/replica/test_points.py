"""A restore to offsets or to a time is the store as it was then, with whole commits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import InvalidRequest, NotAStore, ReplicaBehind
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.replica.objects import SCHEMA, Objects, replica_of, restored
from tests.support.clocks import SetClock
from tests.support.image_workers import images_of_this_process
from tests.support.tables import rows_of

BUCKETS = 3
EPOCH_KEYS = range(100, 112)
"""Every epoch writes its number to all of them: two different numbers mean an incomplete commit."""


class Written:
    """A store with a replica, and the rows at each time."""

    def __init__(self, path: Path, steps: int) -> None:
        self.clock = SetClock()
        self.store = Store(path, StoreOptions(), clock=self.clock)
        self.objects = Objects()
        self.replica = replica_of(self.store, self.objects)
        self.table = self.store.create_table("t", SCHEMA, "k", buckets=BUCKETS)
        self.moments: list[tuple[int, list[dict[str, int]]]] = []
        random, epoch = Random(4), 0
        for step in range(steps):
            self.clock.now += 1000
            if random.random() < 0.5:
                rows = [("upsert", {"k": k, "v": epoch}) for k in EPOCH_KEYS]
                self.table.apply_epoch(kvstore.Changes.of(rows, SCHEMA), "w", epoch, "r")
                epoch += 1
            elif random.random() < 0.3:
                self.table.delete(random.sample(range(40), 4))
            else:
                self.table.upsert([{"k": k, "v": step} for k in random.sample(range(40), 6)])
            self.moments.append((self.clock.now, by_key(self.table)))
            if step % 7 == 3:
                self.store.flush()
                self.replica.ship()
        self.store.flush()
        self.replica.ship()

    @property
    def ends(self) -> list[int]:
        return [end for _, (_, end) in sorted(self.table.offsets().items())]


def by_key(table: kvstore.Table) -> list[dict[str, int]]:
    return sorted(rows_of(table), key=lambda row: row["k"])


def epochs_in(rows: list[dict[str, int]]) -> set[int]:
    return {row["v"] for row in rows if row["k"] in EPOCH_KEYS}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("points") / "s", 60)


@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.long)])
def test_a_restore_to_offsets_has_whole_commits(written: Written, tmp_path: Path, times: int) -> None:
    random, torn = Random(6), 0
    for number in range(times):
        target = {bucket: random.randrange(end + 1) for bucket, end in enumerate(written.ends)}
        done = restored(written.objects, tmp_path / f"{number}", {"t": target})
        ends = done.ends["t"]
        assert all(ends[bucket] <= target[bucket] for bucket in target)
        with kvstore.open(tmp_path / f"{number}", read_only=True) as back:
            rows = by_key(back.table("t"))
            assert {b: end for b, (_, end) in back.table("t").offsets().items()} == ends
        as_then = written.table.scan(as_of=ends).read_all().to_pylist()
        assert rows == sorted(as_then, key=lambda row: row["k"])
        assert len(epochs_in(rows)) <= 1
        torn += len(epochs_in(written.table.scan(as_of=target).read_all().to_pylist())) > 1
    assert torn > times / 2, "no commit would have been torn, so this shows nothing"


def test_a_restore_to_a_time_has_the_rows_of_that_time(written: Written, tmp_path: Path) -> None:
    for number, (now, rows) in enumerate(Random(3).sample(written.moments, 6)):
        at = dt.datetime.fromtimestamp(now / 1000, dt.UTC)
        restored(written.objects, tmp_path / f"{number}", at + dt.timedelta(milliseconds=number % 999))
        with kvstore.open(tmp_path / f"{number}", read_only=True) as back:
            assert by_key(back.table("t")) == rows


def test_impossible_restores_are_refused(written: Written, tmp_path: Path) -> None:
    with pytest.raises(ReplicaBehind, match="ends before this offset"):
        restored(written.objects, tmp_path / "a", {"t": {0: written.ends[0] + 1}})
    with pytest.raises(InvalidRequest, match="no such table or bucket"):
        restored(written.objects, tmp_path / "a", {"t": {BUCKETS: 0}})
    with pytest.raises(InvalidRequest, match="no such table or bucket"):
        restored(written.objects, tmp_path / "a", {"nope": {0: 0}})
    assert not any((tmp_path / "a").iterdir())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()
    with pytest.raises(NotAStore, match="new or empty"):
        restored(written.objects, tmp_path / "b")
    with pytest.raises(NotAStore, match="no replica"):
        restored(Objects(), tmp_path / "c")
    with pytest.raises(InvalidRequest, match="time zone"):
        kvstore.restore("memory:///", tmp_path / "c", dt.datetime(2026, 1, 1))
    before = restored(written.objects, tmp_path / "d", dt.datetime.fromtimestamp(0, dt.UTC))
    assert before.ends == {}


def test_a_log_that_starts_with_a_snapshot_is_restored(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", segment_bytes_max=2000, log_bytes_max=2000) as store:
        table = store.create_table("t", SCHEMA, "k")
        step = 0
        while not table.offsets()[0][0]:
            table.upsert([{"k": k, "v": step} for k in range(step % 5, 60, 2)])
            table.snapshot()
            step += 1
        store.flush()
        objects = Objects()
        replica = replica_of(store, objects)
        replica.ship()
        snapshots = [name for name in objects.names if name.kind == "snapshot"]
        assert len(snapshots) == 1
        table.upsert([{"k": 7, "v": -1}])
        store.flush()
        replica.ship()
        rows = rows_of(table)
        assert replica.check()
        restored(objects, tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert rows_of(back.table("t")) == rows
            assert back.table("t").offsets()[0] == (snapshots[0].start, table.offsets()[0][1])
            back.table("t").upsert([{"k": 8, "v": -1}])
            assert back.check()
        # The snapshot is lost, and the log has gone on: there is nothing but a fresh one.
        del objects.held[str(snapshots[0])]
        for _ in range(9):
            table.upsert([{"k": k, "v": step} for k in range(step % 5, 60, 2)])
            table.snapshot()
            step += 1
        store.flush()
        (finding,) = replica.check().findings
        assert (finding.kind, finding.start, finding.end) == ("MISSING_VERSION", snapshots[0].start, snapshots[0].start)
        assert replica.repair()
        replica.ship()
        assert replica.check()
        restored(objects, tmp_path / "again")
        with kvstore.open(tmp_path / "again") as back:
            assert rows_of(back.table("t")) == rows_of(table)


def test_added_columns_and_dropped_tables_are_restored(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        objects = Objects()
        replica = replica_of(store, objects)
        table = store.create_table("t", SCHEMA, "k")
        store.create_table("gone", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        table.upsert([{"k": 1, "v": 1}])
        store.flush()
        replica.ship()
        store.add_columns("t", [pa.field("w", pa.string())])
        table.upsert([{"k": 2, "v": 1, "w": "ü"}])
        store.drop_table("gone")
        store.checkpoint()
        store.flush()
        replica.ship()
        assert replica.check()
        restored(objects, tmp_path / "back")
        with kvstore.open(tmp_path / "back") as back:
            assert back.list_tables() == ["t"]
            assert rows_of(back.table("t")) == [{"k": 1, "v": 1, "w": None}, {"k": 2, "v": 1, "w": "ü"}]


def test_a_job_loads_files_again_whose_rows_were_not_restored(tmp_path: Path) -> None:
    """The catalog of a replica may be ahead of its buckets: no file is then taken for loaded that is not."""
    source = tmp_path / "in"
    source.mkdir()
    objects = Objects()
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k", buckets=2)
        job = store.create_job("j", source=source, format="csv", table="t", max_files=1)
        replica = replica_of(store, objects)
        table = store.table("t")
        for number in range(4):
            (source / f"{number}.csv").write_text("k,v\n" + "".join(f"{k},{number}\n" for k in range(number + 2)))
            job.run()
            store.consumer("c").commit("t", {bucket: end for bucket, (_, end) in table.offsets().items()})
        store.flush()
        replica.ship()
        ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
        rows = by_key(table)
        statistics = job.show().statistics
    for number, bucket in enumerate((0, 1)):
        target = {bucket: ends[bucket] // 2}
        path = tmp_path / f"{number}"
        restored(objects, path, {"t": target})
        with kvstore.open(path) as back:
            before = by_key(back.table("t"))
            assert before != rows
            found = back.consumers["c"]["t"]
            assert all(found[b] <= end for b, (_, end) in back.table("t").offsets().items())
            status = back.job("j").show()
            loaded = status.statistics.succeeded_tasks
            assert {row["v"] for row in before} <= set(range(loaded))
            assert loaded < 4
            back.job("j").run()
            assert by_key(back.table("t")) == rows
            assert back.job("j").show().statistics == statistics
            assert back.check()


def test_a_job_is_paused_if_the_names_of_its_unrestored_files_are_gone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    objects = Objects()
    with kvstore.open(tmp_path / "s", edits_per_journal=4) as store:
        table = store.create_table("t", SCHEMA, "k")
        job = store.create_job("j", source=tmp_path / "in", format="csv", table="t")
        for number in range(3):
            (tmp_path / "in" / f"{number}.csv").write_text(f"k,v\n{number},{number}\n")
            job.run()
            store.checkpoint()
        assert store.health().segments[0] > 1
        store.flush()
        replica_of(store, objects).ship()
        assert [name for name in objects.names if name.kind == "snapshot"]
        assert table.offsets()[0][1] == 3
    restored(objects, tmp_path / "back", {"t": {0: 1}})
    with kvstore.open(tmp_path / "back") as back:
        assert by_key(back.table("t")) == [{"k": 0, "v": 0}]
        status = back.job("j").show()
        assert status.state == "paused"
        assert "rows of tasks from 2 on were not restored" in str(status.reason)


def test_a_commit_of_a_dropped_writer_is_restored_in_all_buckets_or_none(written: Written, tmp_path: Path) -> None:
    written.store.drop_writer("w")
    written.replica.ship()
    random = Random(8)
    for number in range(6):
        target = {bucket: random.randrange(end + 1) for bucket, end in enumerate(written.ends)}
        restored(written.objects, tmp_path / f"{number}", {"t": target})
        with kvstore.open(tmp_path / f"{number}", read_only=True) as back:
            assert len(epochs_in(by_key(back.table("t")))) <= 1


def moment(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


def test_times_before_and_after_a_replica_are_refused(tmp_path: Path) -> None:
    clock, objects = SetClock(), Objects()
    with images_of_this_process(clock), Store(tmp_path / "s", StoreOptions(edits_per_journal=3), clock=clock) as store:
        replica = replica_of(store, objects)
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        at = moment(clock.now)
        for number in range(6):
            clock.now += 1000
            store.create_table(f"u{number}", SCHEMA, "k")
            store.checkpoint()
        store.flush()
        replica.ship()
    with pytest.raises(ReplicaBehind, match="starts after this time"):
        restored(objects, tmp_path / "a", at)
    with pytest.raises(ReplicaBehind, match="ends before this time"):
        restored(objects, tmp_path / "b", moment(clock.now + 1))
    restored(objects, tmp_path / "c")


def test_points_before_the_first_snapshot_are_refused(tmp_path: Path) -> None:
    clock, objects = SetClock(), Objects()
    with Store(tmp_path / "s", StoreOptions(segment_bytes_max=2000, log_bytes_max=2000), clock=clock) as store:
        table = store.create_table("t", SCHEMA, "k")
        at = moment(clock.now + 1000)
        while not table.offsets()[0][0]:
            clock.now += 1000
            table.upsert([{"k": k, "v": clock.now % 1000} for k in range(60)])
            table.snapshot()
        store.flush()
        replica_of(store, objects).ship()
        rows, start = rows_of(table), next(name.start for name in objects.names if name.kind == "snapshot")
    with pytest.raises(ReplicaBehind, match="starts after this time"):
        restored(objects, tmp_path / "a", at)
    with pytest.raises(ReplicaBehind, match="starts after this offset"):
        restored(objects, tmp_path / "a", {"t": {0: start - 1}})
    for number, point in enumerate((moment(clock.now), {"t": {0: start}}, None)):
        restored(objects, tmp_path / f"{number}", point)
    with kvstore.open(tmp_path / "0") as back:
        assert rows_of(back.table("t")) == rows
    with pytest.raises(NotAStore, match="create that first"):
        restored(objects, tmp_path / "nowhere" / "b")


@pytest.mark.parametrize(
    "to", ["2026-01-01T00:00:00Z", dt.date(2026, 1, 1), 5, {"t": 5}, {"t": {0: -1}}, {"t": {0: 1.5}}]
)
def test_an_invalid_target_is_refused(tmp_path: Path, to: object) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        store.add_replica(str(tmp_path / "r")).ship()
    with pytest.raises(InvalidRequest):
        kvstore.restore(str(tmp_path / "r"), tmp_path / "back", to)  # type: ignore[arg-type]
    assert not (tmp_path / "back").exists()


def test_a_restore_while_the_leader_ships(tmp_path: Path) -> None:
    class Busy(Objects):
        """The leader ships between two requests of a restore, a few times."""

        left = 0

        def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, int]]:
            if not prefix and Busy.left:
                Busy.left -= 1
                table.upsert([{"k": Busy.left, "v": 1}])
                store.flush()
                replica.ship()
            return super().list(prefix, after)

    objects = Busy()
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        replica = replica_of(store, objects)
        replica.ship()
        before, Busy.left = rows_of(table), 3
        restored(objects, tmp_path / "back")
        assert Busy.left == 2, "everything in the first manifest was there: no second listing"
        with kvstore.open(tmp_path / "back") as back:
            assert rows_of(back.table("t")) == before
