"""Clocks that tests set."""

from __future__ import annotations

import time

from kvstore.clock import SystemClock
from tests.support.waiting import wait_until


class SetClock:
    """Time by hand: when the wall clock is set ahead, that time has passed; between, the monotonic one is real."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._now = now_ms
        self._passed = 0.0

    @property
    def now(self) -> int:
        """What the wall clock shows."""
        return self._now

    @now.setter
    def now(self, now_ms: int) -> None:
        self._passed += max(0, now_ms - self._now) / 1000
        self._now = now_ms

    def now_ms(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return time.monotonic() + self._passed


def wait_for_the_next_millisecond() -> None:
    """Wait until the machine's clock shows a later millisecond."""
    clock = SystemClock()
    now = clock.now_ms()
    wait_until(lambda: clock.now_ms() > now)


class JumpingClock:
    """A wall clock that the test sets, while no time passes; the monotonic one is real."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return time.monotonic()
