"""Time comes in as an argument: the only place that asks the system for it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the store asks of time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()
