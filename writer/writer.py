"""A writer as its users see it."""

from __future__ import annotations

import atexit
import logging
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import pyarrow as pa

from logformat.errors import DeletionDisabled, SchemaMismatch, UnsupportedOperation
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.intake import Data, Keys
from writer.accumulator import columns_of
from writer.clock import Clock, SystemClock
from writer.intake import Key, Whole
from writer.lane import Restart
from writer.options import WriterOptions
from writer.refused import Refused
from writer.sender import Sender
from writer.target import Identity, TargetTable

log = logging.getLogger("writer")

EXIT_SECONDS = 5.0
"""How long the end of a program waits for writers that nobody closed, all of them together."""


class TableWriter:
    """Gathers rows into batches, numbers these and sends them until they are acknowledged; a context manager.

    It may be used from any thread; the rows of one thread stay in order. What it was given must not be changed before
    it is flushed, but for the outermost dict. Leaving it flushes it. Leaving it on an exception sends nothing more:
    what was acknowledged stays, and :attr:`unacknowledged` and a note on the exception say what was not.

    Close it: one that is garbage collected, or still open when the program ends, is told of by a ResourceWarning if it
    has rows not acknowledged. Its thread goes on until they are, or can't be, at the end of the program for at most
    ``EXIT_SECONDS``; nobody is left to be told by an error, so what is not written is told by the log ``writer``.

    Rows given as dicts may lack columns that were added to the table since the writer was opened, and keys know none:
    what was handed over before is written, and the new columns are null. Arrow data has the columns of the moment.

    Args:
        table: A :class:`kvstore.Table`, or what else is a :class:`writer.target.TargetTable`.
        identity: Who writes.
        new_id: Gives writer ids never used before, in case the table forgets this one.
        clock: For tests.
        options: Fields of :class:`writer.options.WriterOptions`.

    Raises:
        InvalidRequest: An option is not possible.
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
        _until_exit(self)

    def __del__(self) -> None:
        """Have the thread end."""
        if hasattr(self, "_closed") and not self._closed:
            self._abandon()

    def _abandon(self) -> None:
        if self._buffer.abandon():
            warnings.warn(
                f"{type(self).__name__} was not closed, and rows of it are not acknowledged.",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def unacknowledged(self) -> list[Changes]:
        """Rows that were handed over and neither acknowledged nor refused, in the order of each bucket.

        Empty until the writer has ended. Some of them may have been written: those that were sent.
        """
        return self._buffer.unacknowledged

    @property
    def refused(self) -> list[Refused]:
        """Rows that were refused and told by no error yet; once the writer has ended, none will tell them."""
        return self._buffer.refused

    @property
    def restarts(self) -> list[Restart]:
        """For each time a bucket had forgotten the writer: under which id it went on, and what may be there twice."""
        return list(self._sender.restarts)

    def upsert(self, data: Data) -> None:
        """Hand over rows to store, each in place of the one its key has; for a log table, to append.

        It returns at once, or waits while too much is on its way. Rows given as dicts that do not fit are refused
        later, each for itself: see :meth:`flush`.

        Args:
            data: A dict, a list of dicts, or Arrow data, with every column but an auto-increment one.

        Raises:
            SchemaMismatch: It is nothing of these, or Arrow data that does not fit. Of Arrow data in several batches,
                those before the one that does not fit were handed over.
            RowsRefused: So many rows were refused before that they are told now. Nothing of this call was taken.
            StoreError: The writer has ended, for this reason; see :attr:`unacknowledged`.
        """
        if type(data) is dict:
            self._add(data.copy())
        elif isinstance(data, Mapping):
            self._add(dict(data))
        elif isinstance(data, list | tuple):
            if wrong := [kind for kind in set(map(type, data)) if not issubclass(kind, Mapping)]:
                raise SchemaMismatch("Every row is a dict from column name to value.", given=wrong[0].__name__)
            self._buffer.add_all(map(dict, data))
        else:
            schema, schema_id = columns_of(self._table)
            batches = intake.record_batches(data, schema)
            self._buffer.add_all(Whole(Changes.upserts(rows), schema_id) for rows in batches if rows.num_rows)

    def delete(self, keys: Keys) -> None:
        """Hand over keys whose rows are to be removed; one that is not there is no error.

        Args:
            keys: A key (scalar, tuple or dict), a list of keys, or Arrow data: the key's columns, or the one it has.

        Raises:
            UnsupportedOperation, DeletionDisabled: The table takes no deletes.
            SchemaMismatch, RowsRefused, StoreError: See :meth:`upsert`.
        """
        key = self._table.primary_key
        if key is None:
            raise UnsupportedOperation("A log table is only appended to; it has no key to delete.")
        if self._table.options.delete_behavior == "disable":
            raise DeletionDisabled("Delete operations are disabled for this table; its delete behavior is `disable`.")
        if not isinstance(keys, list) and any(
            hasattr(keys, way) for way in ("__arrow_c_stream__", "__arrow_c_array__", "tolist")
        ):
            schema, schema_id = columns_of(self._table)
            rows = intake.key_rows(keys, pa.schema([schema.field(name) for name in key]))
            if rows.num_rows:
                self._buffer.add_all([Whole(Changes.deletes(rows, schema), schema_id)])
            return
        listed = keys if isinstance(keys, list) else [keys]
        self._buffer.add_all(Key(dict(each) if isinstance(each, Mapping) else each) for each in listed)

    def flush(self) -> None:
        """Return once everything handed over before is acknowledged.

        Raises:
            RowsRefused: Some rows were refused, and are told here once; all others are acknowledged.
            StoreError: The writer has ended, for this reason; see :attr:`unacknowledged`.
        """
        self._buffer.flush()

    def close(self) -> None:
        """Flush, and end; doing so again does nothing.

        Raises:
            RowsRefused, StoreError: See :meth:`flush`. It has ended all the same.
        """
        if self._closed or self._buffer.is_forked:
            return
        try:
            self._buffer.flush()
        finally:
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
            error.add_note(f"The writer was left with {rows} rows not acknowledged; see its `unacknowledged`.")
        if refused := self._buffer.take_refused():
            error.add_note(f"{sum(len(each.changes) for each in refused)} rows were refused: {refused[0].error}")

    def _end(self) -> None:
        self._closed = True
        self._buffer.abort()
        self._sender.join()


_open: weakref.WeakSet[TableWriter] = weakref.WeakSet()


def _until_exit(writer: TableWriter) -> None:
    """Look after a writer when the program ends."""
    _open.add(writer)
    # What was registered last is called first: this must come before what closes the store, and that was there before
    # its table was.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _at_exit() -> None:
    clock = SystemClock()
    until = clock.monotonic() + EXIT_SECONDS
    writers = [writer for writer in _open if not writer._closed]
    for writer in writers:
        with suppress(ResourceWarning):  # raised if warnings are errors; the others are to be waited for all the same
            writer._abandon()
    for writer in writers:
        if not writer._buffer.is_forked and not writer._sender.join(max(0.0, until - clock.monotonic())):
            log.error("the program ends, and rows of a writer that was not closed are not acknowledged")
