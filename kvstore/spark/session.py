"""A Spark session that reads stores fast, with a Java that is there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from kvstore.spark.java import find_java

SETTINGS = {
    # A task with a Python worker costs 56 ms over TCP, half of it without.
    "spark.python.unix.domain.socket.enabled": "true",
    # A worker and Spark wait for each other's first words so long; 15 s are too few on a machine that is busy.
    "spark.python.authenticate.socketTimeout": "10min",
}
WORKER_PYTHON = Path(__file__).with_name("worker-python")
"""Starts Python for a worker; it says itself why."""
_PYTHON = "KVSTORE_SPARK_PYTHON"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the settings that make reading a store fast, and point Spark at this Python and at a Java that works.

    Settings made before are overwritten; nothing about checkpoints or durability is touched. If the environment has no
    ``PYSPARK_PYTHON``, workers run this Python, at the same path on each machine.

    Raises:
        UnsupportedOperation: There is no Java 17 or newer; the message says how to get one.
    """
    os.environ["JAVA_HOME"] = str(find_java())
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = str(WORKER_PYTHON)
    # Also where the environment has it from here already: for a process that was started by one with a session.
    if os.environ["PYSPARK_PYTHON"] == str(WORKER_PYTHON):
        os.environ[_PYTHON] = sys.executable
        builder = builder.config(f"spark.executorEnv.{_PYTHON}", sys.executable)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder
