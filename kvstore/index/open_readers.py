"""Bounds how many indexes a process has open only to read: each takes up to four descriptors, and 2 MiB of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

READERS_OPEN_MAX = 64
"""Indexes that stay open without a read; those that are being read count, too, but are not closed."""
_IN_USE_MAX = 4
"""After so many that are in use the rest is left for a later call: a scan uses all buckets of its table at once."""


class OpenReaders:
    """Buckets of a process whose index is open for reading; thread-safe.

    Args:
        most: How many stay open.
    """

    def __init__(self, most: int = READERS_OPEN_MAX) -> None:
        self.most = most
        self._opened: OrderedDict[Callable[[], bool], None] = (
            OrderedDict()
        )  # without a lock: each of its methods is one step

    def add(self, close: Callable[[], bool]) -> None:
        """Register an index that was opened; call :meth:`shrink` without any lock of a bucket afterwards.

        Args:
            close: Closes it, to be opened again when it is read; False if it is in use now.
        """
        self._opened[close] = None

    def shrink(self) -> None:
        """Close those that were opened first, until few enough are open; those in use are left for a later call."""
        in_use = 0
        while len(self._opened) > self.most and in_use < _IN_USE_MAX:
            try:
                close, _ = self._opened.popitem(last=False)
            except KeyError:
                return  # another thread has closed them
            if not close():
                self.add(close)
                in_use += 1
