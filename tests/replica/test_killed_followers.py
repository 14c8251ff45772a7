"""Followers that are killed again and again: a copy is created, caught up and rebuilt from where it was."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.disk.files import Files
from kvstore.errors import Unavailable
from kvstore.options import StoreOptions
from kvstore.replica.client import ObjectStore
from kvstore.replica.follow.follower import Follower
from kvstore.replica.ship.shipper import Shipper
from logformat import paths
from logformat.catalog.replicas import Shipped, Stream
from logformat.ids import BucketId, TableId
from logformat.replica.object_file import parse_name
from tests.replica.followers import Dies, DyingFiles, Leader, everything, follower
from tests.replica.objects import SCHEMA, Objects, replica_of
from tests.support.clocks import SetClock
from tests.support.processes import Child
from tests.support.replicas import rebuilds
from tests.support.tables import rows_of

STEPS = 25
"""Shipments of a leader, about two objects each."""


class Killed(Exception):
    """Stands for a kill: what is on the disk stays as it is."""


class Killing(Objects):
    """The objects of another client; a process that has downloaded some of them is killed.

    Attributes:
        downloads: How often each object of a stream was downloaded.
    """

    def __init__(self, objects: Objects, after: int, kill: Callable[[], Exception] = Killed) -> None:
        super().__init__(objects.held)
        self.downloads: Counter[str] = Counter()
        self._after = self._left = after
        self._kill = kill

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        if parse_name(name) is not None:
            if not self._left:
                self._left = self._after
                raise self._kill()
            self._left -= 1
            self.downloads[name] += 1
        return super().get(name, bytes_max=bytes_max)


def leader_with_history(path: Path, objects: Objects | None = None) -> Leader:
    leader = Leader(path, 11, objects)
    for _ in range(STEPS):
        leader.step()
        leader.ship()
    return leader


def arrived(objects: Killing, path: Path) -> tuple[kvstore.Follower, int]:
    """A follower that has everything, and how many starts it took."""
    for starts in range(1, 10 * STEPS):
        progress = len(objects.downloads)
        try:
            copy = follower(objects, path)
            try:
                copy.pull()
            except BaseException:
                copy.close()
                raise
        except (Killed, Unavailable):
            assert len(objects.downloads) > progress, "a start made no progress"
        else:
            return copy, starts
    raise AssertionError("it never arrives")


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = leader_with_history(tmp_path / "s")
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("after", "kill"),
    [(1, Killed), pytest.param(7, Killed, marks=pytest.mark.long), (3, lambda: Unavailable("no"))],
    ids=["killed after 1", "killed after 7", "download failed"],
)
def test_a_copy_is_created_though_its_follower_is_killed_after_some_objects(
    leader: Leader, tmp_path: Path, after: int, kill: Callable[[], Exception]
) -> None:
    objects = Killing(leader.objects, after, kill)
    copy, starts = arrived(objects, tmp_path / "c")
    copy.close()
    assert starts <= len(leader.objects.names) / after + 2
    assert max(objects.downloads.values()) == 1, "an object was downloaded more than once"
    assert everything(tmp_path / "c") == everything(leader.store.path)


def test_a_copy_is_created_while_the_leader_goes_on(leader: Leader, tmp_path: Path) -> None:
    objects = Killing(leader.objects, 3, lambda: goes_on())

    def goes_on() -> Exception:
        if leader.number < 2 * STEPS:
            leader.step()
            leader.ship()
        return Killed()

    copy, _ = arrived(objects, tmp_path / "c")
    copy.close()
    assert max(objects.downloads.values()) == 1
    assert everything(tmp_path / "c") == everything(leader.store.path)


def test_a_copy_catches_up_though_its_follower_is_killed(leader: Leader, tmp_path: Path) -> None:
    follower(leader.objects, tmp_path / "c").close()
    for _ in range(STEPS):
        leader.step()
        leader.ship()
    objects = Killing(leader.objects, 2)
    copy, _ = arrived(objects, tmp_path / "c")
    copy.close()
    assert max(objects.downloads.values()) == 1
    assert everything(tmp_path / "c") == everything(leader.store.path)
    assert not (tmp_path / "c" / paths.DOWNLOADS).exists()


def rows_and_ends(path: Path) -> dict[str, Any]:
    """Without the changes: those of a rebuilt bucket begin at its snapshot."""
    return {name: found[::2] for name, found in everything(path).items()}


def test_a_copy_is_rebuilt_though_its_follower_is_killed(leader: Leader, tmp_path: Path) -> None:
    path = tmp_path / "c"
    (tmp_path / "c.kvstore-anew").mkdir()  # what an earlier version left
    rebuilds(leader, path).close()
    objects = Killing(leader.objects, 1)
    copy, _ = arrived(objects, path)
    copy.close()
    assert rows_and_ends(path) == rows_and_ends(leader.store.path)
    # The round that finds out has to be begun again, too.
    assert sum(objects.downloads.values()) <= 2 * len(leader.objects.names)
    assert sorted(each.name for each in tmp_path.glob("c*")) == ["c"]


def test_a_copy_is_replaced_though_every_call_of_the_disk_may_be_the_last(leader: Leader, tmp_path: Path) -> None:
    path = tmp_path / "c"
    rebuilds(leader, path).close()
    steps = range(4)
    shutil.copytree(path, tmp_path / "kept")

    for step in steps:
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "kept", path)

        class Dying(DyingFiles):
            def rename(self, old: Path, new: Path) -> None:
                if path in (old, new):
                    self._call()
                Files.rename(self, old, new)

            def remove_tree(self, at: Path) -> None:
                if at.name.startswith("c.kvstore-before"):
                    self._call()
                Files.remove_tree(self, at)

            def write(self, *given: Any) -> None:
                Files.write(self, *given)

            def sync(self, *given: Any) -> None:
                Files.sync(self, *given)

            def make_directory(self, *given: Any) -> None:
                Files.make_directory(self, *given)

        copy = Follower(path, StoreOptions(), Dying(step), SetClock(), connect=lambda _: leader.objects)
        with pytest.raises(Dies), copy:
            copy.pull()
        with suppress(Dies):
            copy.close()
        objects = Killing(leader.objects, 10**6)
        copy = follower(objects, path)
        copy.pull()
        copy.close()
        assert rows_and_ends(path) == rows_and_ends(leader.store.path)
        assert not any(name.startswith("tables/") for name in objects.downloads), "it was downloaded again"
        assert sorted(each.name for each in tmp_path.glob("c*")) == ["c"]


class KilledForGood(ObjectStore):
    """Kills its process after some downloads."""

    left = 0

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        if parse_name(name) is not None:
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
        return super().get(name, bytes_max=bytes_max)


def follows(pipe: Connection, url: str, path: Path, after: int) -> None:
    objects = KilledForGood(url)
    objects.left = after
    copy = follower(objects, path)
    copy.pull()
    copy.close()
    pipe.send("done")


def test_a_copy_is_created_by_processes_that_are_killed(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        replica = store.add_replica(str(tmp_path / "r"), "r")
        for number in range(8):
            table.upsert([{"k": k, "v": number} for k in range(20)])
            replica.ship()
        objects = list((tmp_path / "r").rglob("*.range"))
        for starts in range(1, len(objects)):
            with Child(follows, (tmp_path / "r").as_uri(), tmp_path / "c", 4) as child:
                try:
                    child.hear()
                except EOFError:
                    continue
                assert starts <= len(objects) / 4 + 1
                break
        assert everything(tmp_path / "c") == everything(tmp_path / "s")


def test_a_copy_begins_with_the_newest_snapshot_that_every_consumer_can_follow(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        kept = dt.timedelta(days=1)
        tables = {
            "keyed": store.create_table("keyed", SCHEMA, "k", retention=kept),
            "consumed": store.create_table("consumed", SCHEMA, "k", retention=kept),
            "forever": store.create_table("forever", SCHEMA, "k"),
            "log": store.create_table("log", SCHEMA, None, retention=kept),
        }
        objects = Objects()
        replica, shipper = replica_of(store, objects), Shipper(store.runtime, "r", objects)
        snapshots: dict[str, list[int]] = {name: [] for name in tables}
        for number in range(6):
            for table in tables.values():
                table.upsert([{"k": k, "v": number} for k in range(5)])
            store.flush()
            replica.ship()
            for id, name in enumerate(tables, 1):
                tables[name].snapshot()
                stream = Stream(TableId(id), BucketId(0))
                snapshots[name].append(shipper.ship_snapshot(stream))
                shipper.report([Shipped(stream=stream, start=0, end=snapshots[name][-1], snapshots=snapshots[name])])
        store.consumer("c").commit("consumed", {0: snapshots["consumed"][2] + 1})
        replica.ship()
        counted = Killing(objects, 10**6)
        follower(counted, tmp_path / "c").close()
    with kvstore.open(tmp_path / "c", read_only=True) as copy, kvstore.open(tmp_path / "s") as store:
        begins = {name: copy.table(name).offsets()[0][0] for name in tables}
        assert begins == {
            "keyed": snapshots["keyed"][-1],
            "consumed": snapshots["consumed"][2],
            "forever": 0,
            "log": 0,
        }
        for name in ("keyed", "consumed", "forever"):
            assert rows_of(copy.table(name)) == rows_of(store.table(name))
        assert copy.check()
    assert [name for name in counted.downloads if name.startswith("tables/1/")] == [
        name for name in counted.downloads if name.startswith("tables/1/") and name.endswith(".snapshot")
    ]
