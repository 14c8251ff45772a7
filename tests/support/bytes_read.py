"""How much some work reads and writes: a measure of its cost that does not depend on the machine."""

from __future__ import annotations

import resource
from pathlib import Path

PAGE = resource.getpagesize()


def bytes_read() -> int:
    """Bytes that this process has read: those of its system calls, and the pages that it touched first."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return _counts()["rchar"] + PAGE * (used.ru_minflt + used.ru_majflt)


def bytes_read_and_written() -> int:
    """Bytes of this process's system calls."""
    counts = _counts()
    return counts["rchar"] + counts["wchar"]


def _counts() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}
