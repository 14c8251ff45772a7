"""Writes an image of the catalog in its own process, so that no writer waits for it.

* One worker at a time writes an image of a store: it holds the lock in ``meta/image/``.
* An image gets its name after it was read back, has the same state, and is durable (docs/format.md, Checkpoint).
* A worker may end at any step: it leaves an image, or ``image.ckpt``, which readers ignore.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from kvstore.checkpoint.messages import Done, Refused, Task, decode_task, encode
from kvstore.clock import Clock, SystemClock
from kvstore.disk.files import Files, refusals
from kvstore.disk.held_directory import HeldDirectory
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptImage, StoreError, Unavailable
from kvstore.meta import image
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from logformat import paths
from logformat.ids import Epoch


def run(task: Task, files: Files, clock: Clock) -> Done:
    """Write an image of the catalog as of the task's edit, unless there is an image of that or a later edit.

    Raises:
        StoreLocked: Another process is writing one.
        Unavailable: The task is outdated.
        StoreFull, LogFailed: The disk is full or failed. There is no new image.
        CorruptImage, UnsupportedVersion: The catalog can't be loaded, or the image can't be read back.
        StoreReplaced: The store's path leads to another directory.
    """
    directory = task.path / paths.IMAGES
    with refusals(directory), _held(task, files, clock):
        files.make_directory(directory)
        lock = ProcessLock(directory / paths.LOCK_FILE, files)
        with lock.taken("Another process is writing an image of the catalog; wait until it ends."):
            if highest_epoch(directory) >= task.epoch:
                raise Unavailable("A newer checkpoint has already written an image; try again.", epoch=task.epoch)
            unfinished = directory / paths.UNFINISHED_IMAGE
            with suppress(FileNotFoundError):
                files.remove(unfinished)
            opened = Journal(task.path, files, clock, task.store_id, leadership=CatalogLeadership(), read_only=True)
            with closing(opened) as journal:
                state = journal.state_at(task.txid)
                base, images = journal.base, journal.images
            path = paths.image_file(directory, state.txid)
            written = base != state.txid
            if written:
                made = image.image_of(state, task.store_id, epoch=task.epoch, now_ms=clock.now_ms())
                image.save(unfinished, made, files)
                files.rename(unfinished, path)
            # Also for an existing image: its worker may have died before the name was durable.
            files.sync_directory(directory)
            previous = base if written else next((each.head.txid for each in images.usable(before=state.txid)), None)
            return Done(
                epoch=task.epoch, txid=state.txid, previous=previous, bytes=path.stat().st_size, written=written
            )


@contextmanager
def _held(task: Task, files: Files, clock: Clock) -> Iterator[None]:
    """Hold the store's directory, unless the controller in this process holds it.

    Raises:
        StoreReplaced: The path leads to another directory than the controller's, or that of the catalog does.
    """
    if files.held is not None:
        files.verify()
        yield
        return
    files.held = HeldDirectory(task.path, clock)
    try:
        for path, identity in ((task.path, task.directory), (task.path / paths.JOURNAL.parent, task.catalog)):
            if identity is not None:
                files.held.expect(path, identity)
        yield
        files.verify()
    finally:
        files.held.close()
        files.held = None


def highest_epoch(directory: Path) -> Epoch:
    """The highest epoch in the heads of all images; 0 if there is none.

    Raises:
        UnsupportedVersion: A newer version wrote an image.
    """
    highest = Epoch(0)
    for txid in image.txids(directory):
        with suppress(FileNotFoundError, CorruptImage):  # a damaged image will be replaced or removed
            highest = max(highest, image.head_of(paths.image_file(directory, txid)).epoch)
    return highest


def main() -> None:
    """Carry out the task on the command line, and write the answer to standard output."""
    task = decode_task(sys.argv[1])
    signal.alarm(task.seconds)
    answer: Done | Refused
    try:
        answer = run(task, Files(), SystemClock())
    except StoreError as error:
        where = {name: str(fact) for name, fact in error.where.items()}
        answer = Refused(epoch=task.epoch, error=type(error).__name__, message=error.message, where=where)
    with suppress(BrokenPipeError):  # the controller has ended
        os.write(sys.stdout.fileno(), encode(answer) + b"\n")


if __name__ == "__main__":
    main()
