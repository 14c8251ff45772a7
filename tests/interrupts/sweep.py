"""Interrupts calls at many moments, and judges what is left each time; runs in a process of its own.

After each interrupt: the store is usable or closed. ``close()`` is called until it returns. Then no thread and no
descriptor is left, another process can write each bucket, and so can this one; a check finds nothing; what was
acknowledged is there, and the call was applied as a whole or not at all.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import shutil
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Self

import kvstore
from kvstore.errors import StoreClosed, WriterFenced
from kvstore.replica import leadership as lead
from logformat import paths
from tests.interrupts.moments import Moments
from tests.interrupts.scenes import ONE, REPLICA, SCENES, Call, World, fill, of_store
from tests.support.processes import Child, Pipe

CLOSES_MAX = 10
SECONDS = 60.0
"""How long threads and descriptors may take to go, on a busy machine."""
HANG_SECONDS = 600
PROBE = {"k": 9_000, "v": 1}


class Bad(AssertionError):
    """An interrupt left something that it should not have."""


def other(_: Pipe, asked: Pipe) -> None:
    """Another process: writes each bucket of the stores it is asked about; answers None, or what went wrong."""
    while True:
        try:
            path = asked.recv()
        except EOFError:
            return
        try:
            with suppress(WriterFenced):  # a promotion that has begun has fenced the leader
                _write(path)
            asked.send(None)
        except Exception:
            asked.send(traceback.format_exc())


def _write(path: Path) -> None:
    with kvstore.open(path) as store:
        for name in store.list_tables():
            table = store.table(name)
            if table.primary_key is not None:
                table.upsert([{"k": k, "v": 0, **_nulls(table)} for k in range(8_000, 8_004)])
                table.delete(list(range(8_000, 8_004)))


def _nulls(table: kvstore.Table) -> dict[str, None]:
    return {name: None for name in table.schema.names if name not in ("k", "v")}


class Sweep:
    """Interrupts of one scene.

    Args:
        template: The store it begins with, and what is beside it.
        elsewhere: Asks the other process.
    """

    def __init__(self, name: str, template: Path, work: Path, elsewhere: Pipe) -> None:
        self.name, self.scene, self.work = name, SCENES[name], work
        self._template, self._elsewhere = template, elsewhere
        self._moments = Moments()
        self._number = 0
        self._allowed: list[dict[str, object]] = []

    def run(self, count: int, seed: int) -> None:
        """Interrupt it at so many random moments; at each there is, if they are fewer, and at some of them again."""
        random = Random(seed)
        world = self._world()
        self._allowed.append(of_store(world.path))
        with self._opened(world) as world:
            found = self._moments.of(self.scene.begin(world))
        self._allowed.append(of_store(world.path))
        for moment in sorted([*range(found)] * (count // found) + random.sample(range(found), count % found)):
            self.one(moment)

    def _is_allowed(self, found: dict[str, object]) -> bool:
        if found in self._allowed:
            return True
        # What a scene writes before its call is there without the call, too.
        world = self._world()
        with self._opened(world) as world:
            self.scene.begin(world)
        return found == of_store(world.path)

    def one(self, moment: int) -> None:
        """One interrupt."""
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        world = self._world()
        descriptors = _descriptors()
        gc.freeze()  # modules and what is cached by now are not looked at each time that garbage is collected
        try:
            self._interrupted(world, moment)
            _settled(descriptors)
            is_promoted = self.name == "promote" and not (world.copy / paths.FOLLOWING).exists()
            self._elsewhere.send(world.copy if is_promoted else world.path)
            if not self._elsewhere.poll(HANG_SECONDS / 2):
                raise Bad("another process waits")
            if (answer := self._elsewhere.recv()) is not None:
                raise Bad(f"another process: {answer}")
            found = of_store(world.path)
            if not self.scene.partly and not self._is_allowed(found):
                raise Bad(f"torn: {found}; possible: {self._allowed}")
            if self.scene.partly:
                _check_nothing_lost(found, self._allowed[0])
            if world.copy.exists():
                self._check_copy(world)
        except BaseException as error:
            error.add_note(f"{self.name}: moment {moment}")
            raise
        shutil.rmtree(world.path.parent)

    def _interrupted(self, world: World, moment: int) -> None:
        if self.scene.opens:
            world = World(world.path, kvstore.open(world.path, commit_idle_ms=20))
        call: Call | None = self.scene.begin(world)
        assert call is not None
        error = self._moments.interrupt(call, moment)
        call = None
        if error is not None and not _is_interrupt(error):
            raise Bad(f"the call raised {error!r}") from error
        if world.store is not None:
            self._use(world)
            _closed(world.store)

    def _use(self, world: World) -> None:
        """The store is usable, or closed."""
        closing = self.name.startswith("close")
        try:
            for name in world.open.list_tables():
                table = world.table(name)
                if table.primary_key is not None:
                    row = {**PROBE, **_nulls(table)}
                    table.upsert(row)
                    if table.get(PROBE["k"]) != row:
                        raise Bad(f"a row is not there: {name}")
                    table.delete(PROBE["k"])
                    table.count()
            world.open.health()
        except StoreClosed:
            if not closing:
                raise

    def _check_copy(self, world: World) -> None:
        """A copy can be brought on, or made again."""
        if not (world.copy / paths.FOLLOWING).exists() and (world.copy / paths.STORE_FILE).exists():
            of_store(world.copy)  # restored or promoted
            return
        if self.name == "restore":
            shutil.rmtree(world.copy)
            kvstore.restore(world.replica, world.copy)
            of_store(world.copy)
            return
        with kvstore.follow(world.replica, world.copy) as follower:
            follower.pull()
        with kvstore.open(world.copy, read_only=True) as copy:
            assert copy.check().ok
            copy.table(ONE).count()

    def _world(self) -> World:
        self._number += 1
        place = self.work / str(self._number)
        shutil.copytree(self._template, place)
        if self.scene.replicates:
            _replicated(place)
        return World(place / "store")

    @contextmanager
    def _opened(self, world: World) -> Iterator[World]:
        if not self.scene.opens:
            yield world
            return
        with kvstore.open(world.path, commit_idle_ms=20) as store:
            yield World(world.path, store)


def _replicated(place: Path) -> None:
    with kvstore.open(place / "store") as store:
        store.add_replica(str(place / REPLICA), "there").ship()
        store.table(ONE).upsert({"k": 110, "v": 1})


def _closed(store: kvstore.Store) -> None:
    for _ in range(CLOSES_MAX):
        try:
            store.close()
        except KeyboardInterrupt:
            continue
        return
    raise Bad("close() does not come to its end")


def _is_interrupt(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("kvstore") and each.is_alive()]


def _descriptors() -> dict[str, str]:
    gc.collect()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if not path.startswith("anon_inode:"):  # of obstore's threads, which stay once they are there
            found[name] = path
    return found


def _settled(before: dict[str, str]) -> None:
    """No thread and no descriptor is left."""
    deadline = time.monotonic() + SECONDS
    while True:
        left = {name: path for name, path in _descriptors().items() if name not in before}
        threads = _threads()
        if not left and not threads:
            return
        if time.monotonic() > deadline:
            raise Bad(f"left: threads {threads}, descriptors {left}")
        time.sleep(0.002)


def _check_nothing_lost(found: dict[str, Any], before: dict[str, Any]) -> None:
    for name, (_, rows, _) in before["tables"].items():
        if missing := set(rows) - set(found["tables"][name][1]):
            raise Bad(f"lost of {name}: {missing}")


class Interrupter:
    """The processes of sweeps; a context manager."""

    def __init__(self, work: Path) -> None:
        self._asks, self._asked = multiprocessing.Pipe()
        self._processes = ExitStack()
        self._processes.callback(self._asks.close)
        self._processes.callback(self._asked.close)
        self._processes.enter_context(Child(other, self._asked))
        self._child = self._processes.enter_context(Child(_child, self._asks, work))

    def sweep(self, name: str, count: int, seed: int) -> None:
        """Interrupt a scene at so many random moments.

        Raises:
            Bad: An interrupt left something that it should not have.
        """
        self._child.say((name, count, seed))
        if (bad := self._child.hear(24 * 3600)) is not None:
            raise Bad(bad)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()


def _child(pipe: Pipe, asks: Pipe, work: Path) -> None:
    """The process that is interrupted: answers None, or what was bad."""
    lead.LEASE_SECONDS = 0.01  # a promotion waits for it
    template = work / "template"
    fill(template / "store")
    for number in count():
        try:
            name, moments, seed = pipe.recv()
        except EOFError:
            return
        try:
            Sweep(name, template, work / str(number), asks).run(moments, seed)
            answer = None
        except BaseException:
            answer = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(work / str(number), ignore_errors=True)
        pipe.send(answer)
