"""A store as a catalog of the run's Spark session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from pyspark.sql import SparkSession

Run = Callable[[str], list[tuple[object, ...]]]
_numbers = count()


@contextmanager
def catalog_of(spark: SparkSession, path: os.PathLike[str] | str) -> Iterator[tuple[str, Run]]:
    """The name of a catalog, and a function that runs SQL in which the catalog is called ``kv``."""
    name = f"store{next(_numbers)}"  # a name of its own: Spark keeps the catalogs it has once loaded
    settings = {f"spark.sql.catalog.{name}": "kvstore.spark.StoreCatalog", f"spark.sql.catalog.{name}.path": str(path)}
    for setting, value in settings.items():
        spark.conf.set(setting, value)

    def run(sql: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in spark.sql(sql.replace("kv.", f"{name}.")).collect()]

    yield name, run
    for setting in settings:
        spark.conf.unset(setting)
