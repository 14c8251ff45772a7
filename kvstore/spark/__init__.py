"""Spark's data source for stores: ``spark.dataSource.register(KvStoreSource)``, then ``format("kvstore")``.

Besides the demo, only this room imports pyspark, which the extra ``spark`` installs.
"""

from kvstore.spark.session import configure
from kvstore.spark.source import KvStoreSource

__all__ = ["KvStoreSource", "configure"]
