"""``read.py MASTER STORE DIRECTORY``: reads ``t`` in every way there is; its changes go to ``DIRECTORY/changes``."""

from __future__ import annotations

import sys

from tests.spark.drivers.session import say, session


def main(master: str, store: str, directory: str) -> None:
    spark = session(master)
    for table in ("t", "t$changelog", "t$binlog"):
        rows = spark.read.format("kvstore").options(path=store, table=table).load()
        say("counted", rows.rdd.getNumPartitions(), rows.count())
    spark.read.format("kvstore").options(path=store, table="t$changelog").load().write.parquet(f"{directory}/changes")
    stream = spark.readStream.format("kvstore").options(path=store, table="t$changelog").load().writeStream
    query = stream.format("parquet").options(path=f"{directory}/sink", checkpointLocation=f"{directory}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    say("streamed", spark.read.parquet(f"{directory}/sink").count())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
