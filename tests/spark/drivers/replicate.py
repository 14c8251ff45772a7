"""``replicate.py MASTER STORE CHECKPOINT [once | small]``: brings the changes of ``t`` into ``u``, until it is killed.

``small`` takes few changes at once, so that there is always something to do.
"""

from __future__ import annotations

import sys

from tests.spark.drivers.session import say, session


def main(master: str, store: str, checkpoint: str, how: str = "") -> None:
    spark = session(master)
    changes = spark.readStream.format("kvstore").options(path=store, table="t$changelog", startingOffsets="full")
    into = (
        changes.option("maxOffsetsPerTrigger", "100" if how == "small" else "5000").load().writeStream.format("kvstore")
    )
    query = into.options(path=store, table="u", writer="replica", checkpointLocation=checkpoint)
    if how == "once":
        query.trigger(availableNow=True).start().awaitTermination()
        say("done")
        return
    running = query.start()
    say("started")
    running.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
