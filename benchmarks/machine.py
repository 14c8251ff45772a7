"""The machine, the versions of what is measured, and what Linux counts for a process."""

from __future__ import annotations

import datetime as dt
import os
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from benchmarks.measuring import seconds

PACKAGES = ("lmdb", "pyarrow", "numpy", "rocksdict", "duckdb", "deltalake")
PAGE_BYTES = 4096
_TICKS = os.sysconf("SC_CLK_TCK")


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


@dataclass(frozen=True)
class Cpu:
    """Seconds of CPU time of this process and all below it, and of the clock.

    Attributes:
        driver: Of this process.
        workers: Of all other Python processes, those that have ended included.
        java: Of Spark's Java.
    """

    driver: float
    workers: float
    java: float
    wall: float

    @classmethod
    def now(cls) -> Cpu:
        """As of now, since the processes began."""
        python = java = 0.0
        for pid, name, ticks in _below(os.getpid()):
            if name == "java":
                java += ticks / _TICKS
            elif pid != os.getpid():
                python += ticks / _TICKS
        return cls(time.process_time(), python, java, time.perf_counter())

    def since(self, before: Cpu) -> Cpu:
        """What was taken since a time."""
        return Cpu(*(mine - other for mine, other in zip(asdict(self).values(), asdict(before).values(), strict=True)))

    @property
    def python(self) -> float:
        """Of all Python processes."""
        return self.driver + self.workers

    @property
    def all(self) -> float:
        """Of all processes."""
        return self.python + self.java


def _below(root: int) -> list[tuple[int, str, int]]:
    """Of a process and all below it: id, name, and the ticks that it and its ended children took."""
    found, parents = {}, {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            before, _, after = (directory / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields, pid = after.split(), int(directory.name)
        parents[pid] = int(fields[1])
        found[pid] = (pid, before.partition("(")[2], sum(map(int, fields[11:15])))
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return [found[pid] for pid in below if pid in found]
