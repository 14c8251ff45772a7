"""Parallel reads of one bucket by other processes: the work, its division, and the read of each part.

The process that plans and the processes that read are different and run at different times: they exchange only offsets
and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.bucket.handle import BucketHandle
from kvstore.errors import Conflict
from kvstore.index.index import View
from kvstore.indexing.asked import Asked
from kvstore.indexing.filters import understood
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import changes_between, inserts_of
from kvstore.read.pruning import offsets_where, ranges_where
from kvstore.read.scan import KeyRange, bytes_within, rows_as_of, rows_of_keys, scan_schema, split_keys
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId, Offset
from logformat.rows import intake

CHANGED_MAX = 1 << 15
"""If there are more changes since the moment of a read, it is a scan."""
Read = Callable[[BucketHandle, View], Iterator[pa.RecordBatch]]


class Splits:
    """Planned reads of one bucket; made by :meth:`kvstore.table.parts.TableParts.of_bucket`.

    Args:
        current: Returns the definition by which the reader calls the columns; raises if the table has no key or was
            dropped.
        latest: Returns the table's current entry in the catalog, which has the schemas of all rows.
        held: Iterates over the result of a read of a view; opens the view now and closes it with the iterator.
    """

    def __init__(
        self,
        handle: BucketHandle,
        current: Callable[[], TableDefinition],
        latest: Callable[[], TableDefinition],
        held: Callable[[BucketHandle, Read], Iterator[pa.RecordBatch]],
    ) -> None:
        self._handle = handle
        self._current = current
        self._latest = latest
        self._held = held

    @property
    def log(self) -> LogFiles:
        """Changes of the bucket; where it is divided, and how large its parts are."""
        return self._handle.log

    def offsets_where(
        self, schema: pa.Schema, filter: pc.Expression | None, start: Offset, end: Offset
    ) -> list[tuple[Offset, Offset]]:
        """Ranges of offsets outside of which no change passes the filter.

        Args:
            schema: Schema that the filter is for: of the whole changelog or binlog.
        """
        if start >= end:
            return []
        if filter is None:
            return [(start, end)]
        handle = self._handle
        bucket, timestamp = BucketId(handle.identity.bucket_id), handle.committed().last_timestamp
        return offsets_where(handle.log, schema, filter, bucket, start, end, timestamp)

    def change_extent(self, start: Offset, end: Offset) -> tuple[int, Offset | None, Offset | None]:
        """Number of changes in a range of offsets, and the first and the last offset that has one.

        An empty batch takes an offset and has none.

        Raises:
            OffsetOutOfRange: The log no longer has the start.
            CorruptBatch: The header of a batch is damaged; damage elsewhere is found only when the batch is read.
        """
        count, first, last = 0, None, None
        for batch in self.log.batches(start, end, counts_only=True):
            base = batch.header.base_offset
            begin, stop = max(start, base), min(end, Offset(base + batch.header.record_count))
            if begin < stop:
                count += stop - begin
                first, last = begin if first is None else first, Offset(stop - 1)
        return count, first, last

    def first_and_last_keys(self, *, as_of: int) -> pa.RecordBatch | None:
        """Key columns of the first and the last row as of an offset; None if they are not known without reading rows.

        Returns:
            Two rows, or none if there are no rows.
        """
        layout = layout_of(self._current())
        with self._handle.snapshot() as view:
            if view.state().applied_offset != as_of:
                return None
            keys = BinaryColumn.from_list(list(view.bounds() or ()))
        if not len(keys):
            return intake.empty(layout.key_schema)
        return pa.RecordBatch.from_arrays(layout.keys.decode(keys), schema=layout.key_schema)

    def row_count(self, *, as_of: int) -> int | None:
        """Number of rows as of an offset; None if it is not known without reading them."""
        if self._current().options.changelog_image == "wal":
            return None  # its rows are not counted
        state = self._handle.committed()
        return state.row_count if state.applied_offset == as_of else None

    def keys_where(self, filter: pc.Expression | None, *, as_of: int) -> list[KeyRange]:
        """Ranges of keys outside of which no row, as of an offset, passes the filter."""
        if filter is None:
            return [KeyRange()]
        with self._handle.snapshot() as view:
            # Earlier keys may lie outside of the current ones.
            return ranges_where(view, self._current(), filter, beyond=view.state().applied_offset != as_of)

    def keys_found(self, filter: pc.Expression | None, *, as_of: int) -> BinaryColumn | None:
        """Encoded keys of all rows that can pass the filter, as of an offset, sorted; None if no index names a few.

        Raises:
            OffsetOutOfRange: The log no longer has the changes since then.
        """
        definition = self._current()
        if filter is None or not definition.indexes:
            return None
        asked = Asked.of(definition, understood(filter, definition.schema).conditions)
        if asked is None:
            return None
        with self._handle.latest() as view:
            latest, now = self._latest().named_as(definition), view.state().applied_offset
            named = asked.few_named(view, latest) if now - as_of <= CHANGED_MAX else None
        if named is None or now == as_of:
            return None if named is None else named.keys
        # Entries are as of now: of what has changed since, each row may have been one that passes.
        log, layout = self._handle.log, layout_of(latest)
        since = changes_between(
            *(log.batches(Offset(as_of), now), latest, BucketId(0), Offset(as_of), now, layout.key_names),
            whole_updates=True,
        )
        changed = chain.from_iterable(layout.encode_keys(rows).to_list() for rows in since)
        return BinaryColumn.from_list(sorted({*named.keys.to_list(), *changed}))

    def row_bytes(self, ranges: Sequence[KeyRange]) -> int:
        """Approximate bytes of the index in ranges of keys."""
        with self._handle.snapshot() as view:
            return bytes_within(view, ranges)

    def split_keys(self, ranges: Sequence[KeyRange], parts: int) -> list[tuple[KeyRange, ...]]:
        """Ranges of keys divided into at most ``parts`` parts of about equal size."""
        with self._handle.snapshot() as view:
            return split_keys(view, ranges, parts)

    def key_after(self, keys: KeyRange, rows: int, *, as_of: int) -> tuple[bytes | None, int]:
        """The first key after some rows of a range, as of an offset.

        Args:
            rows: Number of rows before it; above 0.

        Returns:
            The encoded key, None if there are no more rows; and the number of rows before it.

        Raises:
            OffsetOutOfRange: The log no longer has the changes since then.
        """
        definition = self._current()
        layout = layout_of(definition)
        seen = 0
        for batch in self.rows((keys,), layout.key_names, as_of=as_of):
            if seen + batch.num_rows > rows:
                return layout.encode_keys(batch.slice(rows - seen, 1)).to_list()[0], rows
            seen += batch.num_rows
        return None, seen

    def rows(
        self, keys: Sequence[KeyRange] = (KeyRange(),), columns: Sequence[str] | None = None, *, as_of: int
    ) -> Iterator[pa.RecordBatch]:
        """Like :meth:`kvstore.Table.scan`, for ranges of keys.

        Raises:
            Conflict: The changelog is a WAL image, which has no earlier rows, and there are changes since ``as_of``.
        """
        return self._read(columns, as_of, partial(rows_as_of, keys=keys))

    def rows_of_keys(
        self, keys: BinaryColumn, columns: Sequence[str] | None = None, *, as_of: int
    ) -> Iterator[pa.RecordBatch]:
        """The same for some keys, each of which is looked up.

        Args:
            keys: Encoded, sorted, each once.
        """
        return self._read(columns, as_of, partial(rows_of_keys, keys=keys))

    def _read(
        self, columns: Sequence[str] | None, as_of: int, rows: Callable[..., Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        definition = self._current()
        names = scan_schema(definition, columns).names

        def read(handle: BucketHandle, view: View) -> Iterator[pa.RecordBatch]:
            current = self._latest()
            if current.options.changelog_image == "wal" and (now := view.state().applied_offset) > as_of:
                raise Conflict(
                    "Rows were written since this read began, and a table with a WAL image can only be read as it is "
                    "now; run it again.",
                    table=current.name,
                    as_of=as_of,
                    log_end=now,
                )
            return rows(view, handle.log, current.named_as(definition), Offset(as_of), names)

        return self._held(self._handle, read)

    def inserts(
        self, keys: Sequence[KeyRange], columns: Sequence[str], *, as_of: int, timestamp: int
    ) -> Iterator[pa.RecordBatch]:
        """The same rows, in the form of a changelog that starts at ``full``.

        Args:
            columns: Columns of the changelog.
            timestamp: Timestamp of the last commit before ``as_of`` (ms).
        """
        definition = self._current()
        known = set(definition.schema.names)
        names = [name for name in columns if name in known] or definition.primary_key
        bucket = BucketId(self._handle.identity.bucket_id)
        rows = self.rows(keys, names, as_of=as_of)
        return inserts_of(rows, definition, bucket, Offset(as_of), timestamp, columns)
