"""How many function calls some work makes: a measure of its cost that does not depend on the machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType


def calls_made(work: Callable[[], object]) -> int:
    """Calls of Python functions and built-in ones, in this thread and in those that the work starts."""
    counts: list[list[int]] = []

    def begin(frame: FrameType, event: str, argument: object) -> None:
        count = [0]
        counts.append(count)

        def noted(_: FrameType, event: str, __: object) -> None:
            count[0] += event in ("call", "c_call")

        sys.setprofile(noted)

    threading.setprofile(begin)
    begin(sys._getframe(), "call", None)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sum(count[0] for count in counts)
