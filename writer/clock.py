"""The writer's clock. Time comes in as an argument; this module is its source."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time for a writer."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()
