"""An engine of ingestion jobs: Spark's tasks read the files, with the same reader as the embedded engine.

The driver gets the rows of each task and applies them, so both engines give the same result. Each task must have access
to the files: on a shared disk, or in an object store.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from kvstore.errors import StoreError
from kvstore.spark.frames import mapped
from kvstore.spark.session import configure
from kvstore.spark.types import spark_schema

File = TypeVar("File")
Rows = TypeVar("Rows")

_READ = pa.schema([pa.field("place", pa.int64(), False), pa.field("read", pa.binary(), False)])
TASKS_PER_CORE = 2


class SparkEngine:
    """Reads files in tasks of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(self, reader: Callable[[File], Rows], files: Sequence[File]) -> Iterator[Rows]:
        """Rows of each file, in the order of the files; raises what the reader raises."""
        partitions = min(len(files), TASKS_PER_CORE * self._spark.sparkContext.defaultParallelism)
        places = self._spark.range(0, len(files), 1, partitions)
        read = mapped(places, _reading(reader, files), spark_schema(_READ)).toArrow().sort_by("place")
        for data in read.column("read"):
            result = pickle.loads(data.as_buffer())  # noqa: S301 - pickled by a task of this engine
            if isinstance(result, StoreError):
                raise result
            yield result


def engine() -> SparkEngine:
    """An engine with the active session, or with a new one by Spark's own settings."""
    builder = configure(SparkSession.builder.appName("kvstore job"))
    return SparkEngine(builder.getOrCreate())


def _reading(reader: Callable[[File], Rows], files: Sequence[File]) -> Any:
    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                try:
                    result: Any = reader(files[number])
                except StoreError as error:
                    result = error  # raised in the task, Spark would retry it and turn it into text
                yield pa.record_batch([[number], [pickle.dumps(result, 5)]], schema=_READ)

    return run
