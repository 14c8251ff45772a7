"""Keep a copy of a table in another store, each change applied once, across restarts.

Run it anywhere: ``python examples/replication.py``. It makes its stores in a temporary directory.
"""

import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import kvstore
from kvstore.spark import KvStoreSource, configure

SCHEMA = pa.schema([pa.field("order", pa.int64(), nullable=False), pa.field("state", pa.string())])


def replicate(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Start or resume at the checkpoint; a batch that was applied before is recognised by its number."""
    changes = spark.readStream.format("kvstore").options(path=str(directory / "from"), table="orders$changelog").load()
    return (
        changes.writeStream.format("kvstore")
        .options(path=str(directory / "to"), table="orders", writer="replica")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )


def main(directory: Path) -> int:
    spark = configure(SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")).getOrCreate()
    spark.dataSource.register(KvStoreSource)
    with kvstore.open(directory / "from") as source, kvstore.open(directory / "to") as target:
        orders = source.create_table("orders", SCHEMA, primary_key="order", buckets=2)
        copied = target.create_table("orders", SCHEMA, primary_key="order", buckets=3)
        for day in range(3):
            orders.upsert([{"order": n, "state": f"day {day}"} for n in range(10 * day, 10 * day + 30)])
            orders.delete([10 * day])
            orders.flush()
            query = replicate(spark, directory)
            query.processAllAvailable()
            query.stop()

            here = sorted(orders.scan().read_all().to_pylist(), key=lambda row: row["order"])
            there = sorted(copied.scan().read_all().to_pylist(), key=lambda row: row["order"])
            print(f"day {day}: {len(here)} orders here, {len(there)} there")
            assert there == here
    return len(there)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
