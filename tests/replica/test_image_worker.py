"""A store without memory for an image of its catalog has it made by a copy that follows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

import kvstore
from kvstore.checkpoint import controller
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import CorruptData, Unavailable
from kvstore.meta import image
from kvstore.options import StoreOptions
from kvstore.replica import image_worker
from kvstore.replica.client import ObjectStore
from kvstore.replica.follow import follower
from logformat import paths
from logformat.ids import Epoch, Txid
from logformat.replica import follower_status
from logformat.replica.follower_status import FollowerStatus
from tests.replica.objects import SCHEMA
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, not where the copy is."""
    monkeypatch.setattr(controller, "obstacle", lambda _: Unavailable("There is too little memory."))
    monkeypatch.setattr(image_worker, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(follower, "STATUS_SECONDS", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kvstore.Store]:
    with kvstore.open(tmp_path / "s") as opened:
        opened.create_table("t", SCHEMA, "k")
        opened.add_replica(str(tmp_path / "r"), "r").ship()
        yield opened


def images(store: Path) -> list[int]:
    return list(image.txids(store / paths.IMAGES))


class Following:
    """Follows in a thread until the end of a block."""

    def __init__(self, tmp_path: Path) -> None:
        self.copy = kvstore.follow(str(tmp_path / "r"), tmp_path / "c")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> kvstore.Follower:
        self.copy.pull()
        self._thread.start()
        return self.copy

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.copy.close()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            self.copy.pull()


def test_a_copy_makes_the_image(tmp_path: Path, store: kvstore.Store) -> None:
    with pytest.raises(Unavailable, match="too little memory"):
        store.checkpoint()
    with Following(tmp_path):
        for number in range(3):
            store.create_table(f"u{number}", SCHEMA, "k")
            store.replica("r").ship()
            wait_until(lambda: store.replica("r").followers()[0].txid >= store.replicas["r"].edits_shipped)
            done = store.checkpoint()
            assert done.written
            assert images(store.path)[0] == done.txid
            image.load(paths.image_file(store.path / paths.IMAGES, done.txid), store.runtime.store_id)
        with pytest.raises(Unavailable, match="nothing newer"):
            store.checkpoint()
        # What was answered before is no answer to this, though both are to make the same image.
        store.create_table("last", SCHEMA, "k")
        store.replica("r").ship()
        wait_until(lambda: store.replica("r").followers()[0].txid >= store.replicas["r"].edits_shipped)
        done = store.checkpoint()
    assert len(images(store.path)) == 2
    assert done.previous == images(store.path)[1]
    names = store.list_tables()
    store.close()
    with kvstore.open(tmp_path / "s") as again:
        assert again.list_tables() == names
        assert again.check()


def test_a_copy_that_does_not_answer_is_reported(
    tmp_path: Path, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.follow(str(tmp_path / "r"), tmp_path / "c") as copy:
        copy.pull()
        monkeypatch.setattr(controller, "WORKER_SECONDS", 0.1)
        with pytest.raises(Unavailable, match="did not answer in time"):
            store.checkpoint()
        copy.pull()  # it comes too late
        assert images(store.path) == []
        status = FollowerStatus(
            store_id=store.runtime.store_id,
            name="x",
            as_of_ms=0,
            txid=Txid(1),
            leader_epoch=Epoch(0),
            free_bytes=1 << 40,
            obstacle=None,
        )
        # One that was seen long ago, or says that it can't, is not asked.
        (tmp_path / "r" / follower_status.object_name("x")).write_bytes(follower_status.encode(status))
        assert [each.name for each in store.replica("r").followers()][1:] == ["x"]
        monkeypatch.setattr(follower, "obstacle", lambda _: Unavailable("nor here"))
        copy.pull()
        with pytest.raises(Unavailable, match="too little memory"):
            store.checkpoint()


@pytest.mark.parametrize("damage", ["flipped", "foreign", "answer"])
def test_a_damaged_image_is_refused(tmp_path: Path, store: kvstore.Store, damage: str) -> None:
    with kvstore.open(tmp_path / "other") as other:
        other.create_table("t", SCHEMA, "k")
        state, other_id = other.runtime.catalog(), other.runtime.store_id
    foreign = tmp_path / "foreign"
    image.save(foreign, image.image_of(state, other_id, epoch=Epoch(1), now_ms=1), Files())

    class Damaging(ObjectStore):
        """A place to which nothing comes whole that a copy answers."""

        def replace(self, name: str, pieces: Sequence[bytes | memoryview]) -> None:
            if name.startswith("image/") and damage == "flipped":
                data = bytearray(b"".join(pieces))
                data[len(data) // 2] ^= 1
                pieces = [data]
            elif name.startswith("image/") and damage == "foreign":
                pieces = [foreign.read_bytes()]
            elif name.startswith("answer/") and damage == "answer":
                pieces = [b"{}"]
            super().replace(name, pieces)

    kvstore.follow(str(tmp_path / "r"), tmp_path / "c").close()
    with follower.Follower(tmp_path / "c", StoreOptions(), Files(), SystemClock(), connect=Damaging) as copy:
        copy.pull()

        def answer() -> None:
            wait_until(lambda: any((tmp_path / "r" / "task").glob("*")))
            copy.pull()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(CorruptData):
            store.checkpoint()
        thread.join()
    assert images(store.path) == []
    assert store.check()


def test_the_copy_with_the_most_memory_is_chosen() -> None:
    def status(name: str, free: int | None, said: int, obstacle: str | None = None) -> FollowerStatus:
        return FollowerStatus(
            store_id=UUID(int=1),
            name=name,
            as_of_ms=said,
            txid=Txid(1),
            leader_epoch=Epoch(0),
            free_bytes=free,
            obstacle=obstacle,
        )

    statuses = [
        status("a", 5, 10_000),
        status("b", 9, 10_000),
        status("c", None, 10_000),
        status("d", 99, 10_000, "no"),
    ]
    found = image_worker.chosen(statuses, 10_000)
    assert found is not None
    assert found.name == "b"
    assert image_worker.chosen(statuses, 10_000 + 1000 * image_worker.FRESH_SECONDS) is None
