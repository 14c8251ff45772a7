"""Counts and durations of a process's work on a store, cheap enough to be always on.

``kvstore/store/metrics.py`` shows them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from itertools import count

import numpy as np

from kvstore.clock import Clock
from logformat.ids import TableId

_STEPS = 8
"""Ranges of durations between one and twice it: a quantile is right to a sixteenth."""
SECONDS_MIN = 1e-9
"""Quantiles take what takes less, or no time on the clock, for this."""
_COUNTED_TOGETHER = 256
"""Durations are counted by their range so many at a time: work that is timed only appends its own."""
GETS_TIMED = 32
"""One of so many gets is counted and timed: more would slow down each of them."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations of one kind of work, in seconds.

    Attributes:
        count: Number of them.
        sum: Their sum.
        p50, p99: What half of them, and 99 of 100, do not exceed, to 6%; 0 if there are none.
    """

    count: int
    sum: float
    p50: float
    p99: float


class Timer:
    """Durations of one kind of work, from any thread.

    Attributes:
        now: Returns the beginning of some work, for :meth:`since`.
    """

    def __init__(self, clock: Clock) -> None:
        self.now = clock.monotonic
        self._lock = threading.Lock()
        self._new: deque[float] = deque()
        self._ranges: Counter[int] = Counter()
        self._sum = 0.0

    def since(self, began: float) -> None:
        """Work that began then has ended."""
        self._new.append(self.now() - began)
        if len(self._new) >= _COUNTED_TOGETHER:
            self._count()

    def _count(self) -> None:
        with self._lock:
            taken = np.array([self._new.popleft() for _ in range(len(self._new))])
            fractions, exponents = np.frexp(np.maximum(taken, SECONDS_MIN))
            self._ranges.update((exponents * _STEPS + ((2 * fractions - 1) * _STEPS).astype(int)).tolist())
            self._sum += float(taken.sum())

    def read(self) -> Durations:
        """All of them so far."""
        self._count()
        with self._lock:
            ranges, sum = sorted(self._ranges.items()), self._sum
        number = Counter(dict(ranges)).total()
        return Durations(number, sum, _quantile(ranges, number / 2), _quantile(ranges, number * 0.99))


class TableMeter:
    """Work on one table.

    Attributes:
        append: A group of requests, from the first change until all are answered.
        commit: A commit of an index.
        wait: A commit of an index that writes waited for.
        get: One in ``GETS_TIMED`` calls of ``get``.
        gets: Gives each call of ``get`` a number.
    """

    def __init__(self, clock: Clock) -> None:
        self.append, self.commit, self.wait, self.get = (Timer(clock) for _ in range(4))
        self.gets = count(1)
        self._lock = threading.Lock()
        self._written = (0, 0, 0)

    def wrote(self, batches: int, offsets: int, bytes: int) -> None:
        """Batches were appended to a log."""
        with self._lock:
            self._written = (self._written[0] + batches, self._written[1] + offsets, self._written[2] + bytes)

    @property
    def written(self) -> tuple[int, int, int]:
        """Batches, offsets and bytes that were appended to logs."""
        return self._written


class Meter:
    """Work of a process on a store.

    Attributes:
        sync: An fsync of a log, or of another file that kvstore writes itself.
        checkpoint: A checkpoint of the catalog that succeeded.
    """

    def __init__(self, clock: Clock) -> None:
        self.sync, self.checkpoint = Timer(clock), Timer(clock)
        self._clock = clock
        self._tables: dict[TableId, TableMeter] = {}

    def table(self, id: TableId) -> TableMeter:
        """Work on a table; one meter for each."""
        return self._tables.setdefault(id, TableMeter(self._clock))

    def forget(self, id: TableId) -> None:
        """Forget a table that was dropped."""
        self._tables.pop(id, None)

    @property
    def tables(self) -> dict[TableId, TableMeter]:
        """Tables that were opened."""
        return dict(self._tables)


def _quantile(ranges: list[tuple[int, int]], wanted: float) -> float:
    """The middle of the range in which the wanted one of the sorted durations is."""
    for range, number in ranges:
        wanted -= number
        if wanted <= 0:
            exponent, step = divmod(range, _STEPS)
            return (1 + (step + 0.5) / _STEPS) * 2.0 ** (exponent - 1)
    return 0.0
