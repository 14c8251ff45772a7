"""The public face of a writer.

* Any thread may call it; the rows of one thread keep their order. Only the sender's thread numbers and sends batches.
* A row is written once or reported: as an error of a later call, in ``unacknowledged``, or in the log ``writer``.
"""

from __future__ import annotations

import atexit
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Self

import pyarrow as pa

from logformat.errors import DeletionDisabled, SchemaMismatch, StoreError, UnsupportedOperation
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.given import is_row, keys_of, row_of
from logformat.rows.intake import Data, Keys
from writer.accumulator import columns_of
from writer.bucket_queue import Restart
from writer.clock import Clock, SystemClock
from writer.intake import Key, Whole
from writer.options import WriterOptions
from writer.refused import Refused
from writer.sender import Sender
from writer.target import Identity, TargetTable

log = logging.getLogger("writer")

EXIT_SECONDS = 5.0
"""How long, in total, the end of a program waits for writers that were not closed."""


class TableWriter:
    """Gathers rows into batches, numbers the batches and sends them until they are acknowledged; a context manager.

    Any thread may use it; the rows of one thread stay in order. Don't change given data before it is flushed, except
    the outermost dict. Leaving the context flushes. Leaving it on an exception sends nothing more: what was
    acknowledged stays, and :attr:`unacknowledged` and a note on the exception name the rest.

    Close it. A writer that is garbage collected, or still open when the program ends, emits a ResourceWarning if it has
    rows not acknowledged. Its thread continues until they are settled, at the end of the program for at most
    ``EXIT_SECONDS``; it reports rows that were not written to the log ``writer``, since it has no caller to raise an
    error to.

    Data may lack nullable columns, such as those that were added to the table after the writer was opened; they are
    null.

    Args:
        table: A :class:`kvstore.Table` or another :class:`writer.target.TargetTable`.
        identity: Identity of the writer.
        new_id: Returns writer ids never used before, in case the table forgets this one.
        clock: For tests.
        options: Fields of :class:`writer.options.WriterOptions`.

    Raises:
        InvalidRequest: An option is invalid.
    """

    def __init__(
        self,
        table: TargetTable,
        identity: Identity,
        *,
        new_id: Callable[[], int] | None = None,
        clock: Clock | None = None,
        **options: int,
    ) -> None:
        settings = WriterOptions(**options)
        self._table = table
        self._sender = Sender(table, identity, settings, clock or SystemClock(), new_id)
        self._buffer = self._sender.buffer
        self._add = self._buffer.add
        self._closed = False
        self._sender.start()  # last: until the end of the writer is looked after, nothing is there that must end
        _until_exit(self)

    def __del__(self) -> None:
        """Let the thread end once all rows are settled."""
        if hasattr(self, "_closed") and not self._closed:
            self._abandon()

    def _abandon(self) -> None:
        if self._buffer.abandon():
            warnings.warn(
                f"{type(self).__name__} was not closed and has rows that are not acknowledged; close it.",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def unacknowledged(self) -> list[Changes]:
        """Rows that were handed over and neither acknowledged nor refused, in order within each bucket.

        Empty until the writer has ended. Rows that were sent may have been written.
        """
        return self._buffer.unacknowledged

    @property
    def refused(self) -> list[Refused]:
        """Refused rows that no error has reported yet; once the writer has ended, no error will."""
        return self._buffer.refused

    @property
    def restarts(self) -> list[Restart]:
        """The times a bucket forgot the writer: the new writer id, and the rows that may be written twice."""
        return list(self._sender.restarts)

    def upsert(self, data: Data) -> None:
        """Hand over rows to store, each replacing the row of its key; for a log table, rows to append.

        It returns at once, or waits while the buffer is full. Rows given as dicts that do not fit are refused later,
        one by one: see :meth:`flush`.

        Args:
            data: A row (a dict, dataclass or pydantic model), a list or iterator of rows, a frame, a dataset or other
                Arrow data. A nullable column that is left out is null.

        Raises:
            SchemaMismatch: The data is none of these, or is Arrow data that does not fit. If it has several record
                batches, or is an iterator, those before the one that does not fit were handed over.
            RowsRefused: Too many rows were refused before; this error reports them. Nothing of this call was taken.
            StoreError: The writer has ended, for this reason; see :attr:`unacknowledged`.
        """
        if type(data) is dict:
            self._add(data.copy())
        elif is_row(data):
            self._add(dict(row_of(data)))
        elif isinstance(data, list | tuple):
            rows = data if set(map(type, data)) <= {dict} else list(map(row_of, data))
            if wrong := [kind for kind in set(map(type, rows)) if not issubclass(kind, Mapping)]:
                raise SchemaMismatch(
                    "Every row is a dict from column name to value, a dataclass or a pydantic model.",
                    given=wrong[0].__name__,
                )
            self._buffer.add_all(map(dict, rows))
        elif isinstance(data, Iterator) and not hasattr(data, "__arrow_c_stream__"):
            while listed := list(islice(data, intake.ROWS_TOGETHER)):
                self.upsert(listed)
        else:
            schema, schema_id, key = columns_of(self._table)
            batches = intake.record_batches(data, schema)
            self._buffer.add_all(Whole(Changes.upserts(rows), schema_id, key) for rows in batches if rows.num_rows)

    def delete(self, keys: Keys) -> None:
        """Hand over keys whose rows to delete; a missing key is no error.

        Args:
            keys: A key (scalar, tuple or dict), a list of keys, or Arrow data: the key's columns, or the only one.

        Raises:
            UnsupportedOperation, DeletionDisabled: The table takes no deletes.
            SchemaMismatch, RowsRefused, StoreError: See :meth:`upsert`.
        """
        schema, schema_id, key = columns_of(self._table)
        if not key:
            raise UnsupportedOperation("A log table is append-only; it has no key to delete by.")
        if self._table.options.delete_behavior == "disable":
            raise DeletionDisabled("Delete operations are disabled for this table; its delete behavior is `disable`.")
        keys = keys_of(keys, key)
        if not isinstance(keys, list) and any(
            hasattr(keys, way) for way in ("__arrow_c_stream__", "__arrow_c_array__", "tolist")
        ):
            rows = intake.key_rows(keys, pa.schema([schema.field(name) for name in key]))
            if rows.num_rows:
                self._buffer.add_all([Whole(Changes.deletes(rows, schema), schema_id, key)])
            return
        listed = keys if isinstance(keys, list) else [keys]
        self._buffer.add_all(Key(dict(each) if isinstance(each, Mapping) else each) for each in listed)

    def flush(self) -> None:
        """Wait until everything handed over before is acknowledged.

        Raises:
            RowsRefused: Some rows were refused, or batches because of some rows of theirs; this error reports them,
                once. All others are acknowledged.
            StoreError: The writer has ended, for this reason; see :attr:`unacknowledged`.
        """
        self._buffer.flush()

    def close(self) -> None:
        """Flush, and end the writer; closing again does nothing.

        If Ctrl-C comes meanwhile, close it again: what is not acknowledged yet is sent on.

        Raises:
            RowsRefused, StoreError: See :meth:`flush`. The writer has ended all the same.
        """
        if self._closed or self._buffer.is_forked:
            return
        try:
            if not self._buffer.aborted:
                self._buffer.flush()
        except StoreError:
            self._end()
            raise
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if self._buffer.is_forked:
            return
        self._end()
        rows = sum(map(len, self.unacknowledged))
        if rows:
            error.add_note(f"The writer ended with {rows} rows not acknowledged; see its `unacknowledged`.")
        if refused := self._buffer.take_refused():
            error.add_note(f"{sum(len(each.changes) for each in refused)} rows were refused: {refused[0].error}")

    def _end(self) -> None:
        self._buffer.abort()
        self._sender.join()
        self._closed = True


_open: weakref.WeakSet[TableWriter] = weakref.WeakSet()


def _until_exit(writer: TableWriter) -> None:
    """Register a writer for the end of the program."""
    _open.add(writer)
    # atexit calls the latest registration first: this must run before the store closes, which registered before the
    # table existed.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _at_exit() -> None:
    clock = SystemClock()
    until = clock.monotonic() + EXIT_SECONDS
    writers = [writer for writer in _open if not writer._closed]
    for writer in writers:
        with suppress(ResourceWarning):  # raised if warnings are errors; wait for the other writers all the same
            writer._abandon()
    for writer in writers:
        if not writer._buffer.is_forked and not writer._sender.join(max(0.0, until - clock.monotonic())):
            log.error("the program ends while rows of a writer that was not closed are not acknowledged")
