"""Spark's data source for stores: ``spark.dataSource.register(KvStoreSource)``, then ``format("kvstore")``.

Besides the demo, only this room imports pyspark, which the extra ``spark`` installs.
"""

try:
    import pyspark  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("kvstore.spark needs PySpark: install the extra `spark`.", name="pyspark") from error

from kvstore.shared.write import WriteSummary
from kvstore.spark import frame_reader
from kvstore.spark.retries import retry
from kvstore.spark.session import configure
from kvstore.spark.shared import create_table, sink, write as write_shared
from kvstore.spark.source import KvStoreSource

read = frame_reader.read  # after the imports above, which give this name to the modules of the same name
write = write_shared

__all__ = ["KvStoreSource", "WriteSummary", "configure", "create_table", "read", "retry", "sink", "write"]
