"""The connector's jar: it is next to this module, and for one version of PySpark."""

from __future__ import annotations

from pathlib import Path

import pyspark


def jar_path() -> Path:
    """Where the jar for the installed PySpark is, if it was built."""
    return Path(__file__).with_name(f"kvstore-spark-{pyspark.__version__}.jar")


def find_jar() -> Path | None:
    """The jar for the installed PySpark; None if it was not built, or was built for another version."""
    path = jar_path()
    return path if path.exists() else None
