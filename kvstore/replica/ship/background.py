"""Ships to all replicas of an open store, in a thread, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Self

from kvstore.calls import uninterrupted
from kvstore.errors import InvalidRequest, StoreClosed, StoreError, WriterFenced
from kvstore.replica.replica import Replica


class Shipping:
    """Ships every now and then; a context manager.

    Args:
        replicas: Those there are, asked before each round.
        every: Seconds from one round to the next.

    Attributes:
        failures: Why nothing was shipped to a replica the last time, by its name. What was told WriterFenced is not
            tried again.
    """

    def __init__(self, replicas: Callable[[], Mapping[str, Replica]], every: float) -> None:
        self._replicas = replicas
        self._every = every
        self._closing = threading.Event()
        self.failures: dict[str, StoreError] = {}
        self._thread: threading.Thread | None = None

    @uninterrupted
    def begin(self) -> Self:
        """Ship from now on."""
        self._thread = threading.Thread(target=self._run, name="kvstore-shipping", daemon=True)
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @uninterrupted
    def close(self) -> None:
        """Ship no more; waits for the round under way. What is not shipped yet is by who ships next."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        known: dict[str, Replica] = {}
        while not self._closing.is_set():
            try:
                there = self._replicas()
            except StoreClosed:
                return
            except StoreError as error:  # the catalog can't be read
                self.failures |= dict.fromkeys(known, error)
                self._closing.wait(self._every)
                continue
            for name in self.failures.keys() - there.keys():
                self.failures.pop(name)  # it was removed; another of its name is another
            known = {name: known.get(name, replica) for name, replica in there.items()}
            for name, replica in known.items():
                self._ship(name, replica)
            self._closing.wait(self._every)

    def _ship(self, name: str, replica: Replica) -> None:
        if isinstance(self.failures.get(name), WriterFenced):
            return
        try:
            replica.ship()
        except InvalidRequest:  # it was removed, or the store closed: the next round knows
            self.failures.pop(name, None)
        except StoreError as error:
            self.failures[name] = error
        else:
            self.failures.pop(name, None)
