"""``write.py MASTER STORE ROWS HOW``: writes rows into ``t`` in tasks that dawdle.

HOW is ``slowly``, or ``twice``: the first attempt of one task takes so long that another is begun beside it; each
leaves a file beside the store.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from tests.spark.drivers.session import session

TWICE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "500ms",
}


def dawdle(how: str, beside: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    if how == "twice" and context.partitionId() == 0:
        Path(beside, f"attempt-{context.attemptNumber()}").touch()
    for batch in batches:
        yield batch
        time.sleep(0.3)
    if how == "twice" and context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(8)


def main(master: str, store: str, rows: str, how: str) -> None:
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000", **(TWICE if how == "twice" else {})}
    spark = session(master, **settings)
    frame = spark.range(0, int(rows), 1, 4).selectExpr("id AS k", "concat('name-', id) AS s", "id / 2 AS v")
    slow = frame.mapInArrow(lambda batches: dawdle(how, beside, batches), frame.schema)
    beside = Path(store).parent
    slow.write.format("kvstore").options(path=store, table="t").mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
