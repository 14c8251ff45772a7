"""Rows and options that tests give to a writer, and waiting for what it does with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from logformat.ids import WriterId
from writer import Identity

IDENTITY = Identity(WriterId(7))
FAST = {"linger_ms": 1}
PATIENT = {"linger_ms": 60_000}


def row(k: int) -> dict[str, Any]:
    return {"k": k, "s": f"{k}"}


def rows(*keys: int) -> list[dict[str, Any]]:
    return [row(k) for k in keys]


def eventually(holds: Callable[[], bool], seconds: float = 600.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.001)
    return holds()


def threads() -> int:
    return sum(thread.name == "kvstore-writer" for thread in threading.enumerate())
