"""A process that dies at a call of a method, as by ``kill -9``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import count
from typing import Any


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies(kind: type, name: str, *, call: int = 0, after: bool = False) -> None:
    """Have this process die before or after a call of a method."""
    real: Callable[..., Any] = getattr(kind, name)
    calls = count()  # one thread after the other takes a number

    def planted(*arguments: Any, **named: Any) -> Any:
        mine = next(calls)
        if mine == call and not after:
            die()
        result = real(*arguments, **named)
        if mine == call:
            die()
        return result

    setattr(kind, name, planted)
