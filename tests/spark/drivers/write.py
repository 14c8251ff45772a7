"""``write.py MASTER STORE ROWS HOW``: writes rows into ``t`` in tasks that dawdle.

HOW is ``slowly``, or ``twice``: the first attempt of one task takes so long that another is begun beside it; each
leaves a file beside the store.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import Row

from tests.spark.drivers.session import say, session

TWICE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "500ms",
}


def dawdle(how: str, beside: Path, rows: Iterator[Row]) -> Iterator[Row]:
    context = TaskContext.get()
    assert context is not None
    is_late = how == "twice" and context.partitionId() == 0
    if is_late:
        Path(beside, f"attempt-{context.attemptNumber()}").touch()
    for number, row in enumerate(rows):
        yield row
        if number % 1000 == 0:
            time.sleep(0.3)
    if is_late and context.attemptNumber() == 0:
        time.sleep(8)


def main(master: str, store: str, rows: str, how: str) -> None:
    spark = session(master, **(TWICE if how == "twice" else {}))
    frame = spark.range(0, int(rows), 1, 4).selectExpr("id AS k", "concat('name-', id) AS s", "id / 2 AS v")
    beside = Path(store).parent
    slow = spark.createDataFrame(frame.rdd.mapPartitions(lambda rows: dawdle(how, beside, rows)), frame.schema)
    say("writes")
    slow.write.format("kvstore").options(path=store, table="t").mode("append").save()
    say("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
