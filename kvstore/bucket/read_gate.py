"""Keeps long reads of an index apart from its growth: LMDB can't grow its map while a transaction is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.errors import StoreClosed


class ReadGate:
    """Used by the committer, whose index grows, and by maintenance, which reads the index for long.

    Growth waits for the running read, which checks :attr:`is_to_end` and ends early; it begins again afterwards.

    Attributes:
        is_closed: Whether the gate is closed: no read begins any more.
    """

    def __init__(self) -> None:
        self._use = threading.RLock()  # a read may begin another one
        self._grows = self.is_closed = False

    @property
    def is_to_end(self) -> bool:
        """Whether a running read must end now."""
        return self.is_closed or self._grows

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Block reads, after the running one has ended."""
        self._grows = True
        with self._use:
            self._grows = False
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read; waits while the index grows.

        Raises:
            StoreClosed: The gate is closed.
        """
        with self._use:
            if self.is_closed:
                raise StoreClosed("The store was closed; open it again.")
            yield

    def close(self) -> None:
        """Close the gate: no read begins any more, and the running one ends."""
        self.is_closed = True
