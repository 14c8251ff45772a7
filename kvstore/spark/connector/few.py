"""Rows that a query names by a few keys: they come with the plan, because a task costs more than reading them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from kvstore.spark.read.sources import read
from kvstore.spark.read.tasks import ReadTask
from kvstore.spark.types import arrow_schema

KEYS_MAX = 1000
"""More keys are looked up by tasks."""
BYTES_MAX = 1 << 20
"""So many bytes of rows are not in a plan, nor in what Spark sends to its executors with each task."""


def few_rows(tasks: Sequence[ReadTask], columns: StructType) -> str | None:
    """The rows of tasks that look up a few keys, as an Arrow stream in base64; None if there are more."""
    keys = 0
    for piece in (piece for task in tasks for piece in task.pieces):
        if piece.wanted is None or (keys := keys + len(piece.wanted)) > KEYS_MAX:
            return None
    target, batches = arrow_schema(columns), list[pa.RecordBatch]()
    for task in tasks:
        for batch in read(task, target):
            batches.append(batch)
            if sum(each.nbytes for each in batches) > BYTES_MAX:
                return None
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, target) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return b64encode(stream.getvalue()).decode()
