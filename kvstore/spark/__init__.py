"""Spark reads a store: ``spark.dataSource.register(KvStoreSource)``, then ``format("kvstore")``.

The only room that imports pyspark, but for the demo; it comes with the extra ``spark``.
"""

from kvstore.spark.session import configure
from kvstore.spark.source import KvStoreSource

__all__ = ["KvStoreSource", "configure"]
