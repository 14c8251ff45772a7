"""Reads what the demo wrote with Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as sql

from kvstore.cli.demo.readers import TABLE, Tree, files_of
from kvstore.spark import KvStoreSource, configure

LOGGING = """\
rootLogger = error, console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""
"""Spark's logging configuration: errors only."""


class SparkReader:
    """Folds the changelog with Spark.

    Args:
        configuration: Directory for the configuration of Spark.
    """

    name = "Spark"

    def __init__(self, configuration: Path) -> None:
        self._spark = session(configuration)

    def read(self, path: Path, ends: Sequence[int]) -> tuple[dict[str, int], list[Tree], Tree]:
        """See :meth:`kvstore.cli.demo.readers.Reader.read`."""
        reader = self._spark.read.format("kvstore").option("path", str(path))
        changes = reader.option("table", f"{TABLE}$changelog").load()
        counted = changes.groupBy("_change_type").count().collect()
        rows = reader.option("table", TABLE).load().select("path", "mode", "blob").toArrow()
        counts = {row["_change_type"]: row["count"] for row in counted}
        return counts, [_fold(changes, end) for end in ends], files_of(rows)


def session(configuration: Path) -> SparkSession:
    """A small session that logs errors only."""
    (configuration / "log4j2.properties").write_text(LOGGING)
    os.environ["SPARK_CONF_DIR"] = str(configuration)  # Spark logs before a session can configure it
    builder = configure(SparkSession.builder.master("local[2]").appName("kvstore demo"))
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    for name, value in quiet.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(KvStoreSource)
    return spark


def _fold(changes: DataFrame, end: int) -> Tree:
    """The files before an offset: the last change of each path, unless it is a delete."""
    latest = (
        changes.where((sql.col("_log_offset") < end) & (sql.col("_change_type") != "update_preimage"))
        .groupBy("path")
        .agg(sql.max_by(sql.struct("_change_type", "mode", "blob"), "_log_offset").alias("last"))
        .where("last._change_type != 'delete'")
    )
    return files_of(latest.select("path", "last.mode", "last.blob").toArrow())
