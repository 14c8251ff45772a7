"""``unseen.py MASTER STORE DIRECTORY``: reads ``t``; in executors, the path of the store leads to nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.errors import PySparkException

from tests.spark.drivers.session import say, session

HIDES = """
import os

if "SPARK_EXECUTOR_DIRS" in os.environ:  # of executors only
    from kvstore.errors import NotAStore
    from kvstore.spark.read import address

    def opened(path):
        raise NotAStore("There is no store here.", path=path)

    address.opened = opened
"""


def main(master: str, store: str, directory: str) -> None:
    (Path(directory) / "sitecustomize.py").write_text(HIDES)
    os.environ["PYTHONPATH"] = f"{directory}:{os.environ['PYTHONPATH']}"
    spark = session(master)
    options = {"path": store, "table": "t$changelog"}
    stream = spark.readStream.format("kvstore").options(**options).load().writeStream.format("noop")
    stream = stream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    for read in (
        lambda: spark.read.format("kvstore").options(**options).load().collect(),
        lambda: stream.start().awaitTermination(),
    ):
        try:
            read()
        except PySparkException as error:
            say("refused", *str(error).split("\n"))
    say("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
