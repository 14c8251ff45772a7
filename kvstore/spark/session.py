"""A Spark session that reads stores fast, with a Java that is there."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from kvstore.spark.java import find_java

SETTINGS = {
    # A task with a Python worker costs 56 ms over TCP, half of it without.
    "spark.python.unix.domain.socket.enabled": "true",
}


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the settings that make reading a store fast, and point Spark at this Python and at a Java that works.

    Settings made before are overwritten; nothing about checkpoints or durability is touched.

    Raises:
        UnsupportedOperation: There is no Java 17 or newer; the message says how to get one.
    """
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder
