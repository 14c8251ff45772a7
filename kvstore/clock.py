"""Clocks, passed as arguments, and the text of a time; only this module reads the system's time."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

import numpy as np

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that continues while the machine sleeps; ``CLOCK_MONOTONIC`` does so on other systems than Linux."""


class Clock(Protocol):
    """Source of time for the store."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds since a fixed moment; never goes back."""


class SteadyClock:
    """A clock that moves no faster than the monotonic one: it ignores a wall clock that is set ahead later.

    Args:
        clock: The clock that it follows, also back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic = clock.monotonic  # as it is: a call more for each read would cost as much as the clock
        self._ahead = clock.now_ms() - 1000 * clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump back."""
        return min(self._clock.now_ms(), int(self._ahead + 1000 * self._clock.monotonic()) + 1)


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(partial(time.clock_gettime, _ELAPSED))
    """Seconds since some moment; never goes back. Every read asks, so no call of Python is around it."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        return time.time_ns() // 1_000_000


def time_text(milliseconds: int) -> str:
    """A time, in milliseconds since the Unix epoch, in ISO 8601."""
    return str(np.datetime64(milliseconds, "ms")) + "Z"
