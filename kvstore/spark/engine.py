"""An engine of ingestion jobs: the tasks of Spark read the files, each with what the embedded engine reads them with.

What a task read goes to the driver, which applies it; so both engines come to the same. Files must be where each task
finds them: on a disk that all share, or in an object store.
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
    """Reads files in tasks of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(self, reader: Callable[[File], Rows], files: Sequence[File]) -> Iterator[Rows]:
        """What each file holds, in their order; raises what the reader raises."""
        partitions = min(len(files), TASKS_PER_CORE * self._spark.sparkContext.defaultParallelism)
        places = self._spark.range(0, len(files), 1, partitions)
        read = mapped(places, _reading(reader, files), spark_schema(_READ)).toArrow().sort_by("place")
        for data in read.column("read"):
            found = pickle.loads(data.as_buffer())  # noqa: S301 - made by our own task
            if isinstance(found, StoreError):
                raise found
            yield found


def engine() -> SparkEngine:
    """One with the session there is, or a new one as Spark's own settings have it."""
    builder = configure(SparkSession.builder.appName("kvstore job"))
    return SparkEngine(builder.getOrCreate())


def _reading(reader: Callable[[File], Rows], files: Sequence[File]) -> Any:
    def run(places: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in places:
            for place in batch.column(0).to_pylist():
                try:
                    found: Any = reader(files[place])
                except StoreError as error:
                    found = error  # Spark would try again, and make text of it
                yield pa.record_batch([[place], [pickle.dumps(found, 5)]], schema=_READ)

    return run
