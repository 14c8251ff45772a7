"""The machine, the versions of what is measured, and what Linux counts for a process."""

from __future__ import annotations

import datetime as dt
import os
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from benchmarks.measuring import seconds

PACKAGES = ("lmdb", "pyarrow", "numpy", "rocksdict", "duckdb", "deltalake")
PAGE_BYTES = 4096


def versions() -> dict[str, str]:
    there = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            there[package] = version(package)
        except PackageNotFoundError:
            continue
    return there


def machine() -> dict[str, object]:
    """What figures depend on most."""
    with tempfile.TemporaryFile(prefix="kvstore-fsync-") as file:

        def write_and_sync() -> None:
            os.pwrite(file.fileno(), b"x" * PAGE_BYTES, 0)
            os.fsync(file.fileno())

        fsync_ms = 1000 * median(seconds(write_and_sync) for _ in range(50))
    return {"cores": os.cpu_count(), "fsync_ms": round(fsync_ms, 3), "load_before": round(os.getloadavg()[0], 2)}


def today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def pages_written() -> int:
    """Pages of 4 KiB that this process has written, by calls.

    Not ``write_bytes``: of a page that is written to a large folio of the page cache, it counts the whole folio.
    """
    return _number("/proc/self/io", "wchar") // PAGE_BYTES


def memory_bytes() -> int:
    """Memory of this process that is of no file; mapped files are page cache."""
    return 1024 * _number("/proc/self/status", "RssAnon")


def file_bytes(directory: Path) -> int:
    return sum(512 * path.stat().st_blocks for path in directory.rglob("*") if path.is_file())


def _number(file: str, name: str) -> int:
    line = next(line for line in Path(file).read_text().splitlines() if line.startswith(name))
    return int(line.split(":")[1].split()[0])
