"""``shared.py MASTER URL FIRST END``: writes of the shared table ``t``, from number FIRST on, each under a name.

Write *n* adds 2^n to the sum of every key. A write that fails is repeated.
"""

from __future__ import annotations

import sys

from pyspark.errors import PySparkException

import kvstore.spark
from kvstore.errors import StoreError
from tests.spark.drivers.session import say, session
from tests.spark.drivers.write import TWICE

KEYS = 3_000


def main(master: str, url: str, first: str, end: str) -> None:
    spark = session(master, **TWICE | {"spark.task.maxFailures": "10"})
    for number in range(int(first), int(end)):
        rows = spark.range(0, KEYS, 1, 4).selectExpr("id AS k", f"{1 << number}L AS v")
        say("writing", number)
        while True:
            try:
                kvstore.spark.write(rows, url, "t", txn=f"write {number}")
                break
            except (PySparkException, StoreError) as error:
                say("failed", type(error).__name__)
        say("written", number)
    say("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
