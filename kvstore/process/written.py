"""How much a thread writes."""

from __future__ import annotations

from pathlib import Path

IO = Path("/proc/thread-self/io")
"""Where Linux counts what the calling thread reads and writes."""


def written_bytes() -> int | None:
    """Bytes that this thread has written by calls; None where the system does not count them."""
    try:
        counts = dict(line.split(": ") for line in IO.read_text().splitlines())
        return int(counts["wchar"])
    except (OSError, KeyError, ValueError):
        return None
