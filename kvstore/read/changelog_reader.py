"""Changes as a table's users get them: an iterator of batches with a schema, and the same for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from kvstore.read.follow import Waits
from kvstore.read.frames import pandas_frame, polars_frame, stream_of


class ChangelogReader(Iterator[pa.RecordBatch]):
    """Batches of changes, in order; each change is returned once, whichever way it is read.

    Made by :meth:`kvstore.Table.changelog` and :meth:`kvstore.Table.binlog`, which say what it raises.

    Threads that read one wait for each other, and each batch goes to one of them.

    Args:
        schema: Schema of all batches.
        batches: A generator.
        waits: Those of the generator.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], waits: Waits) -> None:
        self._schema = schema
        self._batches = batches
        self._waits = waits
        self._turn = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        """Columns of the changes, also if there are none."""
        return self._schema

    def __next__(self) -> pa.RecordBatch:
        with self._turn:
            return next(self._batches)

    def read_all(self) -> pa.Table:
        """The remaining changes, in memory; it does not return before the end of what is followed."""
        return pa.Table.from_batches(self, self._schema)

    def to_pandas(self) -> Any:
        """The remaining changes as a ``pandas.DataFrame``; see :meth:`kvstore.Table.to_pandas`.

        Raises:
            UnsupportedOperation: pandas is not installed.
        """
        return pandas_frame(self.read_all())

    def to_polars(self) -> Any:
        """The remaining changes as a ``polars.DataFrame``.

        Raises:
            UnsupportedOperation: Polars is not installed.
        """
        return polars_frame(self.read_all())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The remaining changes as an Arrow stream; see :func:`kvstore.read.frames.stream_of`."""
        return stream_of(pa.RecordBatchReader.from_batches(self._schema, self), requested_schema)

    def close(self) -> None:
        """End the reading, also if another thread waits for changes; there are no more changes then."""
        self._waits.end()
        if self._turn.acquire(blocking=False):  # else the thread that reads ends it
            try:
                self._batches.close()  # type: ignore[attr-defined]
            finally:
                self._turn.release()


class AsyncChanges(AsyncIterator[pa.RecordBatch]):
    """Batches of changes for asyncio, in order; made by :meth:`kvstore.Table.follow`.

    A thread reads while a batch is awaited, so that the event loop goes on; none runs between two batches. If waiting
    is cancelled, the thread ends and so do the changes: begin again after the last batch.

    Args:
        batches: A generator of batches; None where it waits for more.
        waits: Waits of the reader; closed with the last batch.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch | None], waits: Waits) -> None:
        self._batches = batches
        self._waits = waits

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        loop, ended = asyncio.get_running_loop(), object()
        # Leaving this context waits until the thread has ended: for one look, if waiting is cancelled.
        with ThreadPoolExecutor(1, "kvstore-follow") as thread:
            try:
                while (batch := await loop.run_in_executor(thread, next, self._batches, ended)) is None:
                    await self._waits.wait_async()
            except BaseException:
                thread.shutdown()
                await self.aclose()
                raise
        if batch is ended:
            self._waits.close()
            raise StopAsyncIteration
        self._waits.found()
        return batch

    async def aclose(self) -> None:
        """End the reading; there are no more changes then."""
        self._waits.close()
        self._batches.close()  # type: ignore[attr-defined]  # a generator
