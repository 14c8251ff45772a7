"""A session for a master that is given."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from kvstore.spark import KvStoreSource, configure


def session(master: str, **settings: str) -> SparkSession:
    builder = configure(SparkSession.builder.master(master))
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    diagnostics = {"spark.python.worker.faulthandler.enabled": "true"}  # where a worker was that died
    for name, value in (quiet | diagnostics | {"spark.driver.host": "127.0.0.1"} | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(KvStoreSource)
    return spark


def say(*words: object) -> None:
    """A line for the test that waits for it."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()
