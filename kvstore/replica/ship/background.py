"""Ships to all replicas of an open store, in a thread, until it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Self

from kvstore.errors import InvalidRequest, StoreClosed, StoreError, WriterFenced
from kvstore.process.calls import uninterrupted
from kvstore.replica.replica import Replica


class Shipping:
    """Ships at intervals; a context manager.

    Args:
        replicas: Returns the current replicas; called before each round.
        every: Seconds between two rounds.

    Attributes:
        failures: The error of the last round of each replica for which it failed, by name. After a WriterFenced there
            are no more rounds for the replica.
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
        """Stop shipping, after the current round. The next process that ships continues from there."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        watched: dict[str, Replica] = {}
        while not self._closing.is_set():
            try:
                replicas = self._replicas()
            except StoreClosed:
                return
            except StoreError as error:  # the catalog can't be read
                self.failures |= dict.fromkeys(watched, error)
                self._closing.wait(self._every)
                continue
            for name in self.failures.keys() - replicas.keys():
                self.failures.pop(name)  # it was removed; a later replica of the same name is another one
            watched = {name: watched.get(name, replica) for name, replica in replicas.items()}
            for name, replica in watched.items():
                self._ship(name, replica)
            self._closing.wait(self._every)

    def _ship(self, name: str, replica: Replica) -> None:
        if isinstance(self.failures.get(name), WriterFenced):
            return
        try:
            replica.ship()
        except InvalidRequest:  # it was removed, or the store closed; the next round finds out
            self.failures.pop(name, None)
        except StoreError as error:
            self.failures[name] = error
        else:
            self.failures.pop(name, None)
