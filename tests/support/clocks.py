"""A clock that shows what it is told."""

from __future__ import annotations

import time


class SetClock:
    """Wall clock by hand; the monotonic one is real."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return time.monotonic()
