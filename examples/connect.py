"""Read a store through Spark Connect: the client is thin, the server reads the directory.

It needs ``pip install 'pyspark[connect]'``: ``python examples/connect.py`` starts a server in the background, or
``python examples/connect.py sc://host:15002`` uses one that is there, on the machine the store is on.
"""

import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import kvstore
from kvstore.spark import KvStoreSource
from kvstore.spark.java import find_java

SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64())])


def main(directory: Path, remote: str = "local[2]") -> list[int]:
    # Only for a server that this example starts; a running one has its own settings.
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.dataSource.register(KvStoreSource)
    with kvstore.open(directory / "store") as store:
        files = store.create_table("files", SCHEMA, primary_key="path", buckets=2)
        files.upsert([{"path": f"src/{n}", "size": n} for n in range(1000)])
        files.delete("src/7")
        files.flush()
        reader = spark.read.format("kvstore").option("path", str(store.path))
        counts = [
            reader.option("table", "files").load().count(),
            reader.option("table", "files$changelog").load().count(),
            files.to_spark(spark, columns=["size"]).count(),
        ]
    print("rows, changes, rows:", *counts)
    assert counts == [999, 1001, 999]
    spark.stop()
    return counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary), *sys.argv[1:2])
