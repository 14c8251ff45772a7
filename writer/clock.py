"""Time comes in as an argument; this is where it comes from."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a writer asks of time."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()
