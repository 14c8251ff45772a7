"""How much memory there is for this process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
"""Where the system says how much memory is available."""
CGROUP = Path("/sys/fs/cgroup")
"""Where a container says how much memory it has."""


def available_memory() -> int | None:
    """Bytes of memory available to this process or a new one; None where the system does not say."""
    limits = [bytes for bytes in (_of_machine(), _of_group()) if bytes is not None]
    return min(limits, default=None)


def _of_machine() -> int | None:
    with suppress(OSError):
        for line in MEMINFO.read_text().splitlines():
            name, _, amount = line.partition(":")
            if name == "MemAvailable":
                return int(amount.split()[0]) << 10
    return None


def _of_group() -> int | None:
    """Memory left in the container's limit."""
    with suppress(OSError, ValueError):  # no container, or no limit ("max")
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        pages = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return limit - used + int(pages.get("inactive_file", 0))  # the system frees these when needed
    return None
