"""The flow: every change of a table, once, into a Parquet table."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from kvstore.spark import KvStoreSource

spark = SparkSession.active()
spark.dataSource.register(KvStoreSource)


@dp.table(format="parquet")
def changes() -> DataFrame:
    stream = spark.readStream.format("kvstore").option("path", spark.conf.get("kvstore.path"))
    return stream.option("table", "files$changelog").load()
