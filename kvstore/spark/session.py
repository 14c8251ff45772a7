"""Settings of a Spark session that reads stores fast and finds Java."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from kvstore.spark.connector.jar import find_jar
from kvstore.spark.java import find_java

SETTINGS = {
    # A task with a Python worker costs 56 ms over TCP, half of that over a Unix socket.
    "spark.python.unix.domain.socket.enabled": "true",
    # How long a worker and Spark wait for each other's first message; 15 s are too few on a busy machine.
    "spark.python.authenticate.socketTimeout": "10min",
}
WORKER_PYTHON = Path(__file__).with_name("worker-python")
"""The script that starts Python for a worker; it explains why."""
_PYTHON = "KVSTORE_SPARK_PYTHON"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the settings that make reading a store fast, and select this Python and an installed Java.

    Earlier values of these settings are overwritten; checkpoints and durability are not affected. If the environment
    has no ``PYSPARK_PYTHON``, workers run this Python, at the same path on each machine.

    Raises:
        UnsupportedOperation: There is no Java 17 or newer; the message says how to get one.
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
    return builder if jar is None else builder.config("spark.jars", _with(builder, str(jar)))


def _with(builder: SparkSession.Builder, jar: str) -> str:
    """The jars that the builder has, and this one."""
    given = getattr(builder, "_options", {}).get("spark.jars", "").split(",")
    return ",".join([*(each for each in given if each and each != jar), jar])
