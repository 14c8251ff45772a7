"""The flow: every change of ``files``, once, into ``large_files``, which has the rows of a size above 10."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, when

spark = SparkSession.active()
dp.create_sink(
    "large_files",
    "kvstore",
    {"path": spark.conf.get("kvstore.path"), "table": "large_files", "writer": "pipeline of large files"},
)


@dp.append_flow(target="large_files")
def merge() -> DataFrame:
    changes = spark.readStream.option("startingVersion", "earliest").changes("kv.files")
    # A row that is no longer large is deleted; a delete of a row that is not there changes nothing.
    kind = when(col("size") > 10, col("_change_type")).otherwise(lit("delete"))
    return changes.where("_change_type <> 'update_preimage'").withColumn("_change_type", kind)
