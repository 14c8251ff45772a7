"""Keeps long reads of an index apart from its growth: LMDB can't grow its map while a transaction is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.errors import StoreClosed


class ReadGate:
    """Used by the committer, whose index grows, and by maintenance, which reads the index for long.

    Growth waits for the running read, which checks :attr:`is_to_end` and ends early; it begins again afterwards.
    """

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._reading = self._growing = self._closed = False

    @property
    def is_to_end(self) -> bool:
        """Whether a running read must end now."""
        return self._closed or (self._growing and self._reading)

    @property
    def is_closed(self) -> bool:
        """Whether the gate is closed: no read begins any more."""
        return self._closed

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Block reads, after the running one has ended."""
        with self._state:
            self._growing = True
            self._state.wait_for(lambda: not self._reading)
        try:
            yield
        finally:
            with self._state:
                self._growing = False
                self._state.notify_all()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read; waits while the index grows.

        Raises:
            StoreClosed: The gate is closed.
        """
        with self._state:
            self._state.wait_for(lambda: not self._growing)
            if self._closed:
                raise StoreClosed("The store was closed; open it again.")
            self._reading = True
        try:
            yield
        finally:
            with self._state:
                self._reading = False
                self._state.notify_all()

    def close(self) -> None:
        """Close the gate: no read begins any more, and the running one ends."""
        with self._state:
            self._closed = True
            self._state.notify_all()
