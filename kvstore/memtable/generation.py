"""A generation: the rows of the keys that changed in a range of offsets, as views of any end in it see them.

* A row is never replaced in place: an entry has the offset from which on it counts, and the entry before it. So a view
  that ends earlier goes on to see what it saw, while others add entries.
* Many rows that come together stay together, as a run with one offset. That takes less than half of the memory and a
  sixth of the time.
* Rows are as the index stores them. None stands for a deleted row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np

from kvstore.index.index import Layer
from kvstore.memtable.derived import Derived, Made
from kvstore.memtable.run import Run, merged
from logformat.binary_column import BinaryColumn
from logformat.ids import Offset

RUN_KEYS = 1 << 13
"""This many keys are a run; fewer are entries, since each run makes finding a key slower."""
Entry: TypeAlias = "tuple[Offset, bytes | None, Entry | None]"
"""A row of a key: its last change has this offset; the row; and the entry that it replaces."""


class Generation:
    """Entries and runs of a bucket; one thread at a time adds, any thread reads."""

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}
        self._runs: tuple[tuple[Offset, Run], ...] = ()
        self._lock = threading.Lock()  # no key is added while all are listed
        self._all: tuple[Offset, Run] | None = None
        self._few: tuple[Offset, Run] | None = None
        self._derived = Derived()

    def __len__(self) -> int:
        return len(self._entries) + sum(len(run) for _, run in self._runs)

    def add(self, offset: Offset, keys: BinaryColumn, rows: BinaryColumn) -> None:
        """Add the rows that changes left.

        Args:
            offset: Of the last of these changes, and after all that were added before: views that end after it see
                the rows.
            keys: Sorted, each once.
            rows: Of each key; empty where it was deleted.
        """
        if len(keys) >= RUN_KEYS:
            self._runs = (*self._runs, (offset, Run(keys, rows)))
            return
        entries, names = self._entries, keys.to_list()
        left = (row or None for row in rows.to_list())
        with self._lock:
            entries.update(zip(names, zip(repeat(offset), left, map(entries.get, names)), strict=True))

    def find(self, key: bytes, end: Offset) -> Entry | None:
        """The entry of a key that a view with this end sees; None if the index has its row, or that there is none."""
        entry = self._entries.get(key)
        while entry is not None and entry[0] >= end:
            entry = entry[2]
        for offset, run in reversed(self._runs):
            if entry is not None and entry[0] > offset:
                break
            if offset < end and (row := run.get(key)) is not None:
                return offset, row or None, entry
        return entry

    def find_all(self, keys: BinaryColumn, end: Offset) -> list[Entry | None]:
        """Like :meth:`find`, of many keys."""
        names, runs, entries = keys.to_list(), self._runs, self._entries
        if not runs:
            return [self.find(key, end) for key in names]
        may = np.logical_or.reduce([run.may_have(keys) for _, run in runs]).tolist()
        return [
            self.find(key, end) if is_possible or key in entries else None
            for key, is_possible in zip(names, may, strict=True)
        ]

    def run(self, end: Offset) -> Run:
        """All rows that a view with this end sees."""
        known = self._all
        if known is None or known[0] != end:
            self._all = known = end, merged([*(run for offset, run in self._runs if offset < end), self._newest(end)])
        return known[1]

    def newer(self, end: Offset) -> Sequence[tuple[Layer, Made]]:
        """All rows that a view with this end sees, in layers, each with what searches have made of it."""
        return self._derived.of([self._newest(end), *(run for offset, run in self._runs if offset < end)])

    def _newest(self, end: Offset) -> Run:
        """The rows of :meth:`run` whose keys have entries."""
        known = self._few
        if known is None or known[0] != end:
            with self._lock:
                keys = sorted(self._entries)
            found = [(key, entry[1] or b"") for key in keys if (entry := self.find(key, end)) is not None]
            self._few = known = end, Run.of([key for key, _ in found], [row for _, row in found])
        return known[1]

    def since(self, offset: Offset) -> Generation:
        """A generation of the rows of later changes: those of an index that has all changes before the offset."""
        later = Generation()
        with self._lock:
            later._entries = {key: entry for key, entry in self._entries.items() if entry[0] >= offset}
        later._runs = tuple(each for each in self._runs if each[0] >= offset)
        return later
