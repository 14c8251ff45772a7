"""A generation: the rows of the keys that changed in a range of offsets, as views of any end in it see them.

* A row is never replaced in place: an entry has the offset from which on it counts, and the entry before it. So a view
  that ends earlier goes on to see what it saw, while others add entries.
* Rows are as the index stores them. None stands for a deleted row.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple, TypeAlias

from logformat.ids import Offset

Entry: TypeAlias = "tuple[Offset, bytes | None, Entry | None]"
"""A row of a key: its last change has this offset; the row; and the entry that it replaces."""


class Run(NamedTuple):
    """Entries in key order.

    Attributes:
        keys: Sorted.
        rows: Of each key; None where it was deleted.
    """

    keys: Sequence[bytes]
    rows: Sequence[bytes | None]

    def between(self, start: bytes, stop: bytes | None) -> Run:
        """Entries with keys from ``start`` to ``stop`` (exclusive; None for no end)."""
        low = bisect_left(self.keys, start)
        high = len(self.keys) if stop is None else bisect_left(self.keys, stop, low)
        return Run(self.keys[low:high], self.rows[low:high])


class Generation:
    """Entries of a bucket; one thread at a time adds, any thread reads."""

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}
        self._lock = threading.Lock()  # no key is added while all are listed
        self._run: tuple[Offset, Run] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, offset: Offset, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        """Add the rows that changes left.

        Args:
            offset: Of the last of these changes, and after all that were added before: views that end after it see
                the rows.
            keys: Each key once.
        """
        entries = self._entries
        with self._lock:
            entries.update(zip(keys, zip(repeat(offset), rows, map(entries.get, keys)), strict=True))

    def find(self, key: bytes, end: Offset) -> Entry | None:
        """The entry of a key that a view with this end sees; None if the index has its row, or that there is none."""
        entry = self._entries.get(key)
        while entry is not None and entry[0] >= end:
            entry = entry[2]
        return entry

    def run(self, end: Offset) -> Run:
        """All entries that a view with this end sees."""
        known = self._run
        if known is None or known[0] != end:
            with self._lock:
                keys = sorted(self._entries)
            found = [(key, entry[1]) for key in keys if (entry := self.find(key, end)) is not None]
            run = Run([key for key, _ in found], [row for _, row in found])
            self._run = known = end, run
        return known[1]

    def since(self, offset: Offset) -> Generation:
        """A generation of the entries of later changes: those of an index that has all changes before the offset."""
        later = Generation()
        with self._lock:
            later._entries = {key: entry for key, entry in self._entries.items() if entry[0] >= offset}
        return later
