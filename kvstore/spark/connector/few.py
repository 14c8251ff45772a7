"""Rows that a query names by a few keys: they come with the plan, because a task costs more than reading them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from kvstore.spark.read.sources import read
from kvstore.spark.read.tasks import ReadTask
from kvstore.spark.types import arrow_schema

KEYS_MAX = 1000
"""More keys are looked up by tasks."""
BYTES_MAX = 1 << 20
"""So many bytes of rows are not in a plan, nor in what Spark sends to its executors with each task."""
FIRST_KEYS = 8
"""Keys that are looked up first, to see how large rows are."""


def few_rows(tasks: Sequence[ReadTask], columns: StructType) -> str | None:
    """The rows of tasks that look up a few keys, as an Arrow stream in base64; None if there are more."""
    keys = 0
    for piece in (piece for task in tasks for piece in task.pieces):
        if piece.wanted is None or (keys := keys + len(piece.wanted)) > KEYS_MAX:
            return None
    target, batches, size = arrow_schema(columns), list[pa.RecordBatch](), 0
    first, rest = first_keys(tasks)
    for count, some in ((FIRST_KEYS, first), (keys, rest)):
        for batch in (batch for task in some for batch in read(task, target)):
            batches.append(batch)
            size += batch.nbytes
        if size * keys > BYTES_MAX * min(count, keys):  # about so many bytes have all of them
            return None
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, target) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return b64encode(stream.getvalue()).decode()


def first_keys(tasks: Sequence[ReadTask]) -> tuple[list[ReadTask], list[ReadTask]]:
    """Tasks that look up the first few keys, and tasks that look up all others."""
    first, rest, left = list[ReadTask](), list[ReadTask](), FIRST_KEYS
    for task in tasks:
        for piece in task.pieces:
            wanted = piece.wanted or ()
            for some, keys in ((first, wanted[:left]), (rest, wanted[left:])):
                if keys:
                    some.append(replace(task, pieces=(replace(piece, wanted=keys),)))
            left -= len(wanted[:left])
    return first, rest
