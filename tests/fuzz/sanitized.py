"""Runs targets with a native kernel that watches what it reads: ``python -m tests.fuzz.sanitized LIBRARY …``.

What follows are the arguments of :mod:`tests.fuzz.runner`. The library is built with AddressSanitizer, which has to be
in the process from its beginning, and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvstore.kernel import build, library
from tests.fuzz import runner

FLAGS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def sanitized(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments of Python and its environment for a library that is built in a directory."""
    path = build.build(directory / "sanitized.so", FLAGS)
    asan = subprocess.run(
        [build.COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return ["tests.fuzz.sanitized", str(path)], {
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16",
    }


def main() -> None:
    """Run what the file asks for; see :func:`tests.fuzz.runner.main`."""
    path = Path(sys.argv.pop(1))
    library.library_path = lambda: path
    assert library.kernel() is not None
    runner.main()


if __name__ == "__main__":
    main()
