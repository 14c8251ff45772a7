"""Who runs an operation: a thread of this process, or another process; either may be held at a step of it."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kvstore.bucket import maintenance as maintenance
from kvstore.bucket.maintenance import Maintenance
from kvstore.checkpoint.controller import Controller
from tests.proof.barrier import HANG_SECONDS, Barrier, Hang, stacks
from tests.proof.operations import ELSEWHERE, HERE
from tests.proof.world import SETTINGS, WRITTEN, Seen, World, Written, refused
from tests.support.processes import Child, Pipe
from tests.support.waiting import ends_or_waits


class Other(Child):
    """The other process, which says where it is when it hangs."""

    def __init__(self, path: Path, output: Path) -> None:
        super().__init__(serve, path, str(output))
        self._output = output

    def stacks(self) -> str:
        os.kill(self.pid, signal.SIGUSR1)
        self._output.touch()
        time.sleep(1)  # whatever it says by then is good enough for people
        return self._output.read_text()


class Doing(threading.Thread):
    """An operation being done."""

    def __init__(self, world: World, barrier: Barrier, name: str, other: Other) -> None:
        super().__init__(name=name, daemon=True)
        self._world, self._barrier, self._operation, self._other = world, barrier, name, other
        self.sleeps = name in HERE
        self.error: BaseException | None = None
        self.seen: list[Seen] = []

    def run(self) -> None:
        try:
            if self._operation in HERE:
                self.seen = HERE[self._operation](self._world, self._barrier)
            else:
                self._answer(self._other.hear(HANG_SECONDS))
        except BaseException as error:  # raised again when it is joined
            self.error = error

    def _answer(self, answer: object) -> None:
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Written):
            self._world.acknowledge_write(answer)

    def finish(self, seconds: float = HANG_SECONDS) -> list[Seen]:
        """What it saw; a write that another process did not let through is none."""
        self.join(seconds)
        if self.is_alive():
            raise Hang(f"{self.name} does not end:\n{stacks()}\n{self._other.stacks()}")
        if self.error is not None and not refused(self.error):
            raise self.error
        return self.seen


class Actors:
    """This process with a store, and another one."""

    def __init__(self, world: World, barrier: Barrier, other: Other) -> None:
        self.world, self.barrier, self.other = world, barrier, other

    def steps(self, name: str) -> list[str]:
        """Steps that an operation has when nothing is done beside it."""
        self._prepare(name)
        if name in HERE:
            self.barrier.arm(None)
        doing = self._begin(name, None)
        doing.finish()
        self.barrier.disarm()
        seen: list[str] = self.barrier.seen if name in HERE else self._ask("seen")
        self.world.verify(doing.seen)
        return list(seen)

    def pair(self, first: str, at: int, second: str, hang_seconds: float = HANG_SECONDS) -> bool:
        """Hold ``first`` at a step, do ``second`` until it ends or waits, and let both go on.

        Returns:
            Whether ``first`` was held; it may have had fewer steps this time.
        """
        self._prepare(first)
        one = self._begin(first, at)
        held = self._wait(first, one)
        if not held:
            one.finish()
            self.world.verify(one.seen)
            return False
        two = self._begin(second, None)
        ends_or_waits(two, sleeps=two.sleeps)
        if first in HERE:
            self.barrier.release()
        else:
            self.other.say("go")
        seen = one.finish(hang_seconds) + two.finish(hang_seconds)
        self.world.verify(seen)
        return True

    def _prepare(self, name: str) -> None:
        """The same state before the same operation, so that it has the same steps."""
        if name == "retain":
            self.world.parts(WRITTEN).handles[0].retain()
        self.world.begin_pair()
        if name == "write_elsewhere":
            self.world.parts(WRITTEN).stop_writing()
        if name == "checkpoint":
            self.world.edit(SETTINGS["edits_per_journal"] + 1)

    def _begin(self, name: str, at: int | None) -> Doing:
        if name in ELSEWHERE:
            number = self.world.begin_epoch() if name == "epoch_elsewhere" else self.world.next()
            self.other.say((name, at, number))
        elif at is not None:
            self.barrier.arm(at)
        doing = Doing(self.world, self.barrier, name, self.other)
        if at is None or name in HERE:
            doing.start()
        return doing

    def _wait(self, name: str, doing: Doing) -> bool:
        if name in HERE:
            self.barrier.wait_until(lambda: not doing.is_alive())
            self.barrier.disarm()
            return self.barrier.held
        held = self.other.hear(HANG_SECONDS) == "held"
        doing.start()
        return held

    def _ask(self, word: str) -> Any:
        self.other.say(word)
        return self.other.hear(HANG_SECONDS)


def serve(pipe: Pipe, path: Path, output: str) -> None:
    """The other process: does what it is asked, one thing after the other."""
    barrier = Barrier()
    with open(output, "w") as file, quiet(), barrier.installed():
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        seen: list[str] = []
        while (order := pipe.recv()) is not None:
            if order == "seen":
                pipe.send(seen)
                continue
            name, at, number = order
            answers: list[object] = []

            def run(name: str = name, number: int = number, answers: list[object] = answers) -> None:
                try:
                    answers.append(ELSEWHERE[name](path, barrier, number))
                except Exception as error:  # the asking process judges it
                    error.add_note(traceback.format_exc())
                    answers.append(error)

            thread = threading.Thread(target=run, name=name)
            barrier.arm(at)
            thread.start()
            if at is not None:
                barrier.wait_until(lambda thread=thread: not thread.is_alive())
                pipe.send("held" if barrier.held else "over")
                if barrier.held:
                    assert pipe.recv() == "go"
                    barrier.release()
            thread.join()
            barrier.disarm()
            seen = list(barrier.seen)
            pipe.send(answers[0])


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing runs in the background, and nothing waits."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(Maintenance, "begin"))
        stack.enter_context(patch.object(Controller, "appended"))
        stack.enter_context(patch.object(maintenance, "REST_FACTOR", 0))
        yield


@contextmanager
def actors(work: Path) -> Iterator[Actors]:
    """A store with a replica, two processes and a barrier in each."""
    world, barrier = World(work / "store"), Barrier()
    world.open()
    world.store.add_replica(f"file://{work / 'replica'}", "r")
    with Other(world.path, work / "stacks") as other, quiet(), barrier.installed():
        try:
            yield Actors(world, barrier, other)
            other.say(None)
            other.join()
        finally:
            barrier.release()
            world.close()
