"""Spark reads a store: ``spark.dataSource.register(KvStoreSource)``, then ``format("kvstore")``.

The only room that imports pyspark; it comes with the extra ``kvstore[spark]``.
"""

from kvstore.spark.session import configure
from kvstore.spark.source import KvStoreSource

__all__ = ["KvStoreSource", "configure"]
