"""Time comes in as an argument: the only place that asks the system for it."""

from __future__ import annotations

import time
from typing import Protocol

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It goes on while the machine sleeps; elsewhere than on Linux the other one does."""


class Clock(Protocol):
    """What the store asks of time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""


class SteadyClock:
    """A clock whose time moves no faster than the monotonic one.

    A wall clock that is set ahead after it was made is not followed.

    Args:
        clock: The clock it follows; where that goes back, it does too.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now_ms() - 1000 * clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump back."""
        return min(self._clock.now_ms(), int(self._ahead + 1000 * self._clock.monotonic()) + 1)

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return self._clock.monotonic()


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.clock_gettime(_ELAPSED)
