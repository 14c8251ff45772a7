"""Settings of a Spark session that reads stores fast and finds Java."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from kvstore.errors import UnsupportedOperation
from kvstore.spark.connector.jar import find_jar
from kvstore.spark.java import find_java

SETTINGS = {
    # A task with a Python worker costs 56 ms over TCP, half of that over a Unix socket.
    "spark.python.unix.domain.socket.enabled": "true",
    # How long a worker and Spark wait for each other's first message; 15 s are too few on a busy machine.
    "spark.python.authenticate.socketTimeout": "10min",
}
CATALOG = "kvstore.spark.StoreCatalog"
"""The class of the connector that is a catalog."""
EXTENSIONS = "kvstore.spark.Extensions"
"""The class of the connector that has joins look up keys."""
WORKER_PYTHON = Path(__file__).with_name("worker-python")
"""The script that starts Python for a worker; it explains why."""
_IS_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")
_PYTHON = "KVSTORE_SPARK_PYTHON"


def configure(
    builder: SparkSession.Builder, catalogs: Mapping[str, str | os.PathLike[str]] | None = None
) -> SparkSession.Builder:
    """Add the settings that make reading a store fast, and select this Python and an installed Java.

    Where the connector's jar was built (``make setup``, ``make wheel``), it is loaded: ``format("kvstore")`` is then
    the connector, else the Python source. A session that is running already does not load it.

    Earlier values of these settings are overwritten; checkpoints and durability are not affected. If the environment
    has no ``PYSPARK_PYTHON``, workers run this Python, at the same path on each machine.

    Args:
        catalogs: Catalogs of the session: from their names to the directory of a store, or the directory or URL of a
            replica. ``{"kv": "/data/store"}`` makes ``SELECT * FROM kv.files`` possible.

    Raises:
        UnsupportedOperation: There is no Java 17 or newer, or there should be catalogs and there is no jar for this
            PySpark; the message says how to get one.
    """
    os.environ["JAVA_HOME"] = str(find_java())
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = str(WORKER_PYTHON)
    # Also if an earlier call has set it, such as in a parent process with a session.
    if os.environ["PYSPARK_PYTHON"] == str(WORKER_PYTHON):
        os.environ[_PYTHON] = sys.executable
        builder = builder.config(f"spark.executorEnv.{_PYTHON}", sys.executable)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    jar = find_jar()
    if jar is not None:
        builder = builder.config("spark.jars", _with(builder, "spark.jars", str(jar)))
        builder = builder.config("spark.sql.extensions", _with(builder, "spark.sql.extensions", EXTENSIONS))
    elif catalogs:
        raise UnsupportedOperation(
            "Catalogs need the connector, which was not built for this PySpark; build it with "
            '`python -m kvstore.spark.connector.build`, or use format("kvstore").',
            pyspark=pyspark.__version__,
        )
    for name, location in (catalogs or {}).items():
        given = os.fspath(location)
        path = given if _IS_URL.match(given) else os.path.abspath(given)
        builder = builder.config(f"spark.sql.catalog.{name}", CATALOG)
        builder = builder.config(f"spark.sql.catalog.{name}.path", path)
    return builder


def _with(builder: SparkSession.Builder, setting: str, name: str) -> str:
    """What the builder has for a setting that is a list, and this one."""
    given = getattr(builder, "_options", {}).get(setting, "").split(",")
    return ",".join([*(each for each in given if each and each != name), name])
