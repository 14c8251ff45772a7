"""One bucket for readers in other processes, which share the work: what there is to read, cut up, and each part of it.

Who plans and who reads are different processes, at different times: what one tells the other are offsets and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.bucket.handle import Tablet
from kvstore.index.index import View
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import inserts_of
from kvstore.read.pruning import offsets_where, ranges_where
from kvstore.read.scan import KeyRange, bytes_within, rows_as_of, scan_schema, split_keys
from logformat.ids import BucketId, Offset

Read = Callable[[Tablet, View], Iterator[pa.RecordBatch]]


class Shares:
    """Reads of one bucket; made by :meth:`kvstore.Table.shares`.

    Args:
        current: The table as the catalog has it now, which has a key; raises if it has none, or was dropped.
        held: Iterates over what is made of a view, which is taken now and given up with the iterator.
    """

    def __init__(
        self,
        tablet: Tablet,
        current: Callable[[], TableDefinition],
        held: Callable[[Tablet, Read], Iterator[pa.RecordBatch]],
    ) -> None:
        self._tablet = tablet
        self._current = current
        self._held = held

    def commit_end(self, start: Offset, end: Offset, records: int) -> Offset:
        """Where who takes whole commits stops: after ``records`` at most, but after the first commit at least.

        Raises:
            OffsetOutOfRange: The log does not hold ``start`` any more.
        """
        return self._tablet.log.commit_end(start, end, records)

    def offsets_where(
        self, schema: pa.Schema, filter: pc.Expression | None, start: Offset, end: Offset
    ) -> list[tuple[Offset, Offset]]:
        """Ranges of offsets outside of which no change passes a filter.

        Args:
            schema: What the filter is for: all of the changelog, or of the binlog.
        """
        if start >= end:
            return []
        if filter is None:
            return [(start, end)]
        tablet = self._tablet
        bucket, timestamp = BucketId(tablet.place.identity.bucket_id), tablet.committed().last_timestamp
        return offsets_where(tablet.log, schema, filter, bucket, start, end, timestamp)

    def change_bytes(self, start: Offset, end: Offset) -> int:
        """About how many bytes of the log a range of offsets takes."""
        return self._tablet.log.bytes_between(start, end)

    def split_changes(self, start: Offset, end: Offset, parts: int) -> list[tuple[Offset, Offset]]:
        """A range of offsets cut between commits, into ``parts`` of about one size or fewer."""
        return self._tablet.log.split(start, end, parts, 1)

    def keys_where(self, filter: pc.Expression | None, *, as_of: int) -> list[KeyRange]:
        """Ranges of keys outside of which no row passes a filter, of those there were at an offset."""
        if filter is None:
            return [KeyRange()]
        with self._tablet.snapshot() as view:
            # Keys of the past may lie beyond those of now.
            return ranges_where(view, self._current(), filter, beyond=view.state().applied_offset != as_of)

    def row_bytes(self, ranges: Sequence[KeyRange]) -> int:
        """About how many bytes of the index ranges of keys take."""
        with self._tablet.snapshot() as view:
            return bytes_within(view, ranges)

    def split_keys(self, ranges: Sequence[KeyRange], parts: int) -> list[tuple[KeyRange, ...]]:
        """Ranges of keys cut into ``parts`` of about one size or fewer."""
        with self._tablet.snapshot() as view:
            return split_keys(view, ranges, parts)

    def rows(
        self, keys: Sequence[KeyRange] = (KeyRange(),), columns: Sequence[str] | None = None, *, as_of: int
    ) -> Iterator[pa.RecordBatch]:
        """Like :meth:`kvstore.Table.scan`, of ranges of keys."""
        names = scan_schema(self._current(), columns).names

        def read(tablet: Tablet, view: View) -> Iterator[pa.RecordBatch]:
            return rows_as_of(view, tablet.log, self._current(), Offset(as_of), names, keys)

        return self._held(self._tablet, read)

    def inserts(
        self, keys: Sequence[KeyRange], columns: Sequence[str], *, as_of: int, timestamp: int
    ) -> Iterator[pa.RecordBatch]:
        """The same rows, as the changelog shows them that starts at ``full``.

        Args:
            columns: Of the changelog.
            timestamp: When the last commit before ``as_of`` was (ms).
        """
        definition = self._current()
        names = [name for name in columns if name in definition.schema.names] or definition.primary_key
        bucket = BucketId(self._tablet.place.identity.bucket_id)
        rows = self.rows(keys, names, as_of=as_of)
        return inserts_of(rows, definition, bucket, Offset(as_of), timestamp, columns)
