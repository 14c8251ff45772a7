"""``merge.py MASTER STORE FIRST KIND``: statements that change every row of ``kv.t``, from number FIRST on.

KIND is ``merge``, or ``replace``: each statement replaces the table.

Statement *n* waits for the file that :func:`gate` names, and leaves the rows of :func:`rows_after`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.spark.drivers.session import say, session

KEYS = 6_000
MERGE = f"""
    MERGE INTO kv.t AS t
    USING (SELECT id AS k, {{number}} AS n FROM range(0, {KEYS}, 1, 4) WHERE id % 3 <> {{number}} % 3) AS x ON t.k = x.k
    WHEN MATCHED THEN UPDATE SET n = x.n
    WHEN NOT MATCHED THEN INSERT *
    WHEN NOT MATCHED BY SOURCE THEN DELETE
"""
REPLACE = f"""
    CREATE OR REPLACE TABLE kv.t AS
    SELECT id AS k, {{number}} AS n FROM range(0, {KEYS}, 1, 4) WHERE id % 3 <> {{number}} % 3
"""
STATEMENTS = {"merge": MERGE, "replace": REPLACE}


def rows_after(number: int) -> dict[int, int]:
    return {k: number for k in range(KEYS) if k % 3 != number % 3}


def gate(store: object, number: int) -> Path:
    return Path(f"{store}-{number}")


def main(master: str, store: str, first: str, kind: str) -> None:
    catalog = {"spark.sql.catalog.kv": "kvstore.spark.StoreCatalog", "spark.sql.catalog.kv.path": store}
    spark = session(master, **catalog, **{"spark.sql.shuffle.partitions": "2", "spark.task.maxFailures": "4"})
    number = int(first)
    while True:
        while not gate(store, number).exists():
            time.sleep(0.01)
        say("began", number)
        try:
            spark.sql(STATEMENTS[kind].format(number=number)).collect()
            say("done", number)
        except (PySparkException, Py4JJavaError) as error:
            say("failed", number, type(error).__name__, str(error).replace("\n", " ")[:1000])
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
