"""Waiting for a condition, with a limit that a busy machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 600.0


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds; after ten minutes the test fails."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)
