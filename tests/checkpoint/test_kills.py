"""Controller and worker die at every step of a checkpoint: no edit is lost, and nothing goes before it may."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from unittest import mock

import pytest

from kvstore.checkpoint.controller import Controller
from kvstore.disk.files import Files
from kvstore.errors import LogFailed, StoreFull
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from tests.checkpoint.catalogs import STORE, Catalog
from tests.support.clocks import SetClock
from tests.support.image_workers import Here
from tests.support.processes import Child, Pipe

KILLED = 77


class DyingDisk(Files):
    """The real disk; the process ends before its nth step (from 0), of a write after a part of it."""

    def __init__(self, at: int) -> None:
        self._left = at

    def step(self, last: Callable[[], object] = lambda: None) -> None:
        if not self._left:
            last()
            os._exit(KILLED)
        self._left -= 1

    def open(self, path: Path, *, create: bool = False) -> int:
        self.step()
        return super().open(path, create=create)

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        data = b"".join(pieces)
        self.step(lambda: os.pwrite(descriptor, data[: len(data) // 2], position))
        super().write(descriptor, pieces, position)

    def sync(self, descriptor: int) -> None:
        self.step()
        super().sync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        self.step()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def make_directory(self, path: Path) -> None:
        self.step()
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        self.step()
        super().sync_directory(path)


def checkpoint(pipe: Pipe, path: Path, at: int) -> None:
    """A checkpoint whose process ends at a step of controller or worker."""
    disk, clock = DyingDisk(at), SetClock()
    drop = Journal.drop_before

    def dropped(journal: Journal, *arguments: object) -> int:
        disk.step()
        found = drop(journal, *arguments)  # type: ignore[arg-type]
        disk.step()
        return found

    with mock.patch.object(Journal, "drop_before", dropped):
        journal = Journal(path, disk, clock, STORE, leadership=CatalogLeadership())
        Controller(path, STORE, journal, disk, clock, start=lambda task: Here(task, disk, clock)).checkpoint()
    pipe.send("done")


@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_killed_at_every_step(tmp_path: Path, earlier: int) -> None:
    """After as many checkpoints that came to their end."""
    before = Catalog(tmp_path / "before")
    for _ in range(earlier):
        before.append(17)
        before.controller().checkpoint()
    before.append(17)
    before.journal.close()
    first_edits, images = set(), set()
    for at in count():
        shutil.copytree(before.path, tmp_path / "s", copy_function=shutil.copyfile)
        with Child(checkpoint, tmp_path / "s", at) as child:
            status = child.join()
        with before.found_at(tmp_path / "s") as catalog:
            catalog.assert_reachable()
            first_edits.add(catalog.first_edit)
            images.add(len(catalog.image_txids))
            catalog.append(5)
            for _ in range(2):
                catalog.controller().checkpoint()
                catalog.assert_reachable()
                catalog.append(3)
            assert not (catalog.path / "meta/image/image.ckpt").exists()
            assert len(catalog.image_txids) == 2
            catalog.assert_reachable()
        shutil.rmtree(tmp_path / "s")
        if not status:
            break
        assert status == KILLED
    assert at >= {0: 8, 1: 10, 3: 11}[earlier]
    assert len(first_edits) == (2 if earlier else 1)
    assert images == {0: {0, 1}, 1: {1, 2}, 3: {2, 3}}[earlier]


class RefusingDisk(Files):
    """The real disk, whose nth step of a kind fails."""

    def __init__(self, step: str, code: int) -> None:
        self._step, self._code = step, code

    def _refuse(self, step: str) -> None:
        if step == self._step:
            raise OSError(self._code, os.strerror(self._code))

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        self._refuse("write")
        super().write(descriptor, pieces, position)

    def sync(self, descriptor: int) -> None:
        self._refuse("sync")
        super().sync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        self._refuse("rename")
        super().rename(old, new)


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
@pytest.mark.parametrize(("code", "expected"), [(errno.ENOSPC, StoreFull), (errno.EIO, LogFailed)])
def test_a_disk_that_refuses_leaves_what_there_was(
    tmp_path: Path, step: str, code: int, expected: type[Exception]
) -> None:
    catalog = Catalog(tmp_path / "s")
    for _ in range(2):
        catalog.append(17)
        catalog.controller().checkpoint()
    images, first_edit = catalog.image_txids, catalog.first_edit
    catalog.append(17)
    with pytest.raises(expected):
        catalog.controller(lambda task: Here(task, RefusingDisk(step, code), catalog.clock)).checkpoint()
    assert (catalog.image_txids, catalog.first_edit) == (images, first_edit)
    catalog.assert_reachable()
    catalog.controller().checkpoint()
    catalog.assert_reachable()
    catalog.journal.close()
