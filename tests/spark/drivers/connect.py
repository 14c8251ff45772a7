"""``connect.py STORE CHECKPOINT``: reads and writes through Spark Connect; the test compares what this says."""

from __future__ import annotations

import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kvstore.spark import KvStoreSource, configure, create_table, read, sink, write
from tests.spark.drivers.session import say


def main(store: str, checkpoint: str) -> None:
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark = configure(builder, catalogs={"kv": store}).getOrCreate()
    rows = spark.read.format("kvstore").options(path=store, table="t").load()
    say("counted", rows.count())
    say("filtered", [row.s for row in read(spark, store, "t$changelog").where("k = 3").select("s").collect()])
    spark.sql("CREATE TABLE kv.u (k bigint, s string, PRIMARY KEY (k))")
    spark.sql("INSERT INTO kv.u SELECT * FROM kv.t WHERE k < 5")
    spark.sql("UPDATE kv.u SET s = 'x' WHERE k = 1")
    say("inserted", [tuple(row) for row in spark.sql("SELECT k, s FROM kv.u WHERE k < 2 ORDER BY k").collect()])
    spark.table("kv.t").writeTo("kv.u").append()
    rows.write.format("kvstore").options(path=store, table="u").mode("append").save()
    changes = spark.readStream.format("kvstore").options(path=store, table="t$changelog", maxOffsetsPerTrigger=4)
    into = changes.load().writeStream.format("kvstore").options(path=store, table="u", checkpointLocation=checkpoint)
    query = into.trigger(availableNow=True).start()
    query.awaitTermination()
    say("copied", [each["sources"][0]["metrics"]["bucketsToCopy"] for each in query.recentProgress])
    spark.dataSource.register(KvStoreSource)
    python = spark.read.format("kvstore_python").options(path=store, table="u").load()
    say("python", python.count())
    shared = f"{store}-shared"
    create_table(shared, "t", {"k": "int64", "s": "string"}, "k")
    say("shared", write(spark.table("kv.t"), shared, "t", txn="once").epoch)
    stream = changes.load().writeStream.option("checkpointLocation", f"{checkpoint}-sink").trigger(availableNow=True)
    query = stream.foreachBatch(sink(shared, "t", writer="w")).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        say("sink", "UnsupportedOperation: Spark Connect does not tell a batch" in str(error))
    say("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
