"""Compiles the kernel with the machine's C compiler, next to its sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kvstore.errors import UnsupportedOperation
from kvstore.kernel.library import PREFIX, ROOM, library_path, sources

COMPILER = "cc"
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic")


def build(target: Path | None = None, flags: Sequence[str] = (), compiler: Sequence[str] = (COMPILER,)) -> Path:
    """Build the library, and return its path.

    Args:
        target: Where it comes to be; None for where it is looked for. Libraries of other sources are removed there.
        flags: More flags for the compiler.
        compiler: The command that compiles, with the arguments that come first.

    Raises:
        UnsupportedOperation: There is no C compiler, or the sources do not compile. An earlier library stays.
    """
    program = shutil.which(compiler[0])
    if program is None:
        raise UnsupportedOperation(
            f"There is no C compiler; install one that is called `{compiler[0]}`.",
            path=os.environ.get("PATH", os.defpath),
        )
    path = target or library_path()
    unfinished = path.with_name(f"new-{os.getpid()}-{path.name}")
    try:
        command: list[str | Path] = [program, *compiler[1:], *FLAGS, *flags, "-o", unfinished, *sources()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnsupportedOperation("The native kernel does not compile.", reason=done.stdout + done.stderr)
        unfinished.replace(path)  # processes that run keep the file that they have loaded
    finally:
        unfinished.unlink(missing_ok=True)
    if target is None:
        for other in ROOM.glob(f"{PREFIX}*.so"):
            if other != path:
                other.unlink(missing_ok=True)
    return path


def main() -> None:
    """Build the library, for the set-up; print its path, or why there is none, and exit with 1."""
    try:
        sys.stdout.write(f"{build()}\n")
    except UnsupportedOperation as error:
        sys.exit(f"Without the native kernel, Python does all the work. {error}")


if __name__ == "__main__":
    main()
