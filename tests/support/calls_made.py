"""How many function calls some work makes: a measure of its cost that does not depend on the machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self


class CallsMade:
    """Counts calls of Python functions and built-in ones while it is entered: in this thread and those that begin."""

    def __init__(self) -> None:
        self._counts: list[list[int]] = []

    @property
    def number(self) -> int:
        return sum(count[0] for count in self._counts)

    def __enter__(self) -> Self:
        def begin(_: FrameType, __: str, ___: object) -> None:
            sys.setprofile(self._profile())

        threading.setprofile(begin)
        sys.setprofile(self._profile())
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self) -> Callable[[FrameType, str, object], None]:
        """Counts the calls of one thread."""
        count = [0]
        self._counts.append(count)

        def noted(_: FrameType, event: str, __: object) -> None:
            count[0] += event in ("call", "c_call")

        return noted


def calls_made(work: Callable[[], object]) -> int:
    """Calls that the work makes, also in threads that it starts."""
    with CallsMade() as calls:
        work()
    return calls.number
