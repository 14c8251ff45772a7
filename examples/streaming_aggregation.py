"""Keep totals of a table by streaming its changelog: inserted rows are added, deleted rows are subtracted.

Run it anywhere: ``python examples/streaming_aggregation.py``. It makes a store in a temporary directory.
"""

import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import kvstore
from kvstore.spark import KvStoreSource, configure

SCHEMA = pa.schema([("order", pa.int64()), ("shop", pa.string()), ("amount", pa.int64())])

SIGN = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END AS sign"


def main(directory: Path) -> dict[str, tuple[int, int]]:
    spark = configure(SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")).getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.dataSource.register(KvStoreSource)
    with kvstore.open(directory / "store") as store:
        orders = store.create_table("orders", SCHEMA, primary_key="order", buckets=2)
        orders.upsert([{"order": n, "shop": "north" if n % 3 else "south", "amount": n} for n in range(100)])
        orders.flush()

        changes = spark.readStream.format("kvstore").options(path=str(store.path), table="orders$changelog").load()
        # Current rows come as inserts first, so totals are correct from the beginning.
        totals = (
            changes.selectExpr("shop", "amount", SIGN)
            .selectExpr("shop", "sign", "sign * amount AS amount")
            .groupBy("shop")
            .agg({"sign": "sum", "amount": "sum"})
        )
        query = (
            totals.writeStream.format("memory")
            .queryName("totals")
            .outputMode("complete")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )
        query.processAllAvailable()

        orders.upsert([{"order": 1, "shop": "south", "amount": 1000}])
        orders.delete([2, 3])
        orders.flush()
        query.processAllAvailable()
        query.stop()
        found = {row["shop"]: (row["sum(sign)"], row["sum(amount)"]) for row in spark.table("totals").collect()}
        rows = orders.scan().read_all().to_pylist()
    for shop, (count, amount) in sorted(found.items()):
        print(f"{shop}: {count} orders, {amount}")
        mine = [row["amount"] for row in rows if row["shop"] == shop]
        assert (count, amount) == (len(mine), sum(mine))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
