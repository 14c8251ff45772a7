"""Waiting for a condition, with a limit that a busy machine keeps, and for a thread to wait."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

SECONDS_MAX = 600.0
_SAMPLE_SECONDS = 0.002
_SAMPLES = 4


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds; after ten minutes the test fails."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def ends_or_waits(thread: threading.Thread, *, sleeps: bool = True, seconds: float = 0.4) -> bool:
    """Whether a thread ends; False once it waits for another thread.

    Args:
        sleeps: Whether it waits in this process: what another does is not seen, only waited for, for a while.
        seconds: How long that while is; it is also the limit for a thread that goes on and on.
    """
    deadline = time.monotonic() + seconds
    quiet, stood = 0, ""
    while thread.is_alive() and quiet < _SAMPLES:
        thread.join(_SAMPLE_SECONDS)
        frame = sys._current_frames().get(thread.ident or 0)
        stands = "" if frame is None else f"{id(frame)} {frame.f_lasti}"
        quiet = quiet + 1 if sleeps and stands == stood and not _runs() else 0
        stood = stands
        if time.monotonic() > deadline:
            break
    return not thread.is_alive()


def _runs() -> bool:
    """Whether a thread of this process runs, or would if there were a core."""
    own = threading.get_native_id()
    for task in os.listdir("/proc/self/task"):
        try:
            state = Path(f"/proc/self/task/{task}/stat").read_text().rpartition(") ")[2][0]
        except (FileNotFoundError, ProcessLookupError):
            return True  # it just ended
        if int(task) != own and state in "RD":
            return True
    return False
