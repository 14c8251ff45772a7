"""Runs targets with a native kernel that watches what it reads: ``python -m tests.fuzz.sanitized LIBRARY …``.

What follows are the arguments of :mod:`tests.fuzz.runner`, or ``pytest`` and its arguments. The library is built with
AddressSanitizer, which has to be in the process from its beginning, and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.kernel import build, library
from tests.fuzz import runner

FLAGS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def sanitized(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments of Python and its environment for a library that is built in a directory."""
    path = build.build(directory / "sanitized.so", FLAGS)
    # With the library of C++, too: pyarrow raises errors of C++, which AddressSanitizer watches from the beginning.
    libraries = [_file_of(name) for name in ("libasan.so", "libstdc++.so.6")]
    return ["tests.fuzz.sanitized", str(path)], {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16",
    }


def _file_of(library: str) -> str:
    command = [build.COMPILER, f"-print-file-name={library}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Run targets, see :func:`tests.fuzz.runner.main`, or tests."""
    path = Path(sys.argv.pop(1))
    library.library_path = lambda: path
    assert library.kernel() is not None
    if sys.argv[1] == "pytest":
        sys.exit(pytest.main(sys.argv[2:]))
    runner.main()


if __name__ == "__main__":
    main()
