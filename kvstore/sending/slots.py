"""Slots: writer ids under which a process sends rows that have no writer, so that each is applied once.

* A slot is a locked file of the directory ``senders``; it belongs to one process at a time, and its id to one request
  of a bucket at a time. So there are as many ids as requests that are sent at once.
* A slot that was given back with every request answered keeps its id for the next process. One that was not, because
  the process was killed, gets a new id: a request of the old one may still be applied.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from kvstore.disk.files import Files, refusals
from logformat import paths
from logformat.ids import WriterId

_ID_BYTES_MAX = 32


@dataclass(slots=True, eq=False)
class Slot:
    """A slot of this process.

    Attributes:
        is_new: Whether the id was made for it now: no bucket knows it.
        is_spoiled: Whether a request of the id was left without an answer; it is not used again.
        waiting: Requests that wait for their answer.
    """

    writer_id: WriterId
    is_new: bool
    descriptor: int
    is_spoiled: bool = False
    waiting: set[object] = field(default_factory=set)


class Slots:
    """The slots of this process, for all buckets of a store; thread-safe.

    Args:
        new_id: Makes a writer id that no one has.
    """

    def __init__(self, store: Path, files: Files, new_id: Callable[[], WriterId]) -> None:
        self._path = store / paths.SENDERS
        self._files = files
        self._new_id = new_id
        self._mutex = threading.Lock()
        self._slots: list[Slot] = []
        _all.add(self)

    def other_than(self, used: set[WriterId]) -> Slot:
        """A slot whose id is none of these.

        Raises:
            StoreFull, LogFailed, StoreLocked: The disk refuses, or the catalog can't be edited.
        """
        with self._mutex:
            for slot in self._slots:
                if slot.writer_id not in used and not slot.is_spoiled:
                    return slot
            self._slots.append(slot := self._taken())
            return slot

    def close(self) -> None:
        """Give all slots back."""
        with self._mutex:
            for slot in self._slots:
                if not slot.is_spoiled and not slot.waiting:
                    self._give_back(slot)
                fcntl.flock(slot.descriptor, fcntl.LOCK_UN)
                self._files.close(slot.descriptor)
            self._slots.clear()

    def _give_back(self, slot: Slot) -> None:
        """Write the id of a slot for the next process; on a full disk that one gets another id."""
        try:
            self._files.write(slot.descriptor, [memoryview(str(slot.writer_id).encode())], 0)
        except OSError:
            with suppress(OSError):
                self._files.truncate(slot.descriptor, 0)  # a part of the id would be another one

    def forget(self) -> None:
        """Close the files in a forked child, which leaves the slots to the parent."""
        for slot in self._slots:
            os.close(slot.descriptor)
        self._slots.clear()

    def _taken(self) -> Slot:
        with refusals(self._path):
            self._files.make_directory(self._path)
            for number in count():
                descriptor = self._files.open_name(self._path / f"{number}.slot", os.O_RDWR | os.O_CREAT)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._files.close(descriptor)
            try:
                known = os.pread(descriptor, _ID_BYTES_MAX, 0)
                self._files.truncate(descriptor, 0)  # before it is used
                is_new = not known.isdigit()
                return Slot(self._new_id() if is_new else WriterId(int(known)), is_new, descriptor)
            except BaseException:
                self._files.close(descriptor)
                raise


_all: weakref.WeakSet[Slots] = weakref.WeakSet()


def _forget_all() -> None:
    for slots in list(_all):
        slots.forget()


os.register_at_fork(after_in_child=_forget_all)
