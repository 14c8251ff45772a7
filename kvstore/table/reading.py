"""What every read of an open table goes through.

* A call asks for the definition once, and calls the columns by it to its end. What is decoded is decoded by the latest
  definition, which is read after the view or the end that is read: it has the schemas of all stored rows.
* A read ends with an error about the table or the store if one of them is gone meanwhile.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import chain
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import column_names, integer, integer_within, shown
from kvstore.bucket.reads import BucketReads
from kvstore.errors import InvalidRequest, StoreError, UnsupportedOperation
from kvstore.history.origin import Origins
from kvstore.history.past import Past
from kvstore.history.shape import Shape, check_shapes
from kvstore.index.index import View
from kvstore.indexing.asked import AT_ONCE_ROWS, Asked
from kvstore.indexing.conditions import Condition, expression_of
from kvstore.indexing.filters import understood
from kvstore.indexing.find import rows_by
from kvstore.indexing.single import FEW_KEYS, UNKNOWN, SingleSearches, Unknown
from kvstore.memtable.memtable import First
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import CatalogReads, FixedCatalog
from kvstore.read.changelog import End, Start, changelog_schema
from kvstore.read.changelog_reader import ChangelogReader
from kvstore.read.follow import ChangeReader, Waits, together
from kvstore.read.lookup import SingleReads
from kvstore.read.pruning import ranges_where
from kvstore.read.ranges import ALL_KEYS, Sought, Span, merged, sought
from kvstore.read.scan import (
    SCAN_ROWS,
    KeyRange,
    RowFilter,
    common,
    first_rows,
    keys_within,
    offset_as_of,
    rows_as_of,
    rows_of_keys,
    scan_schema,
)
from kvstore.request.native_rows import rows_of_pairs
from kvstore.request.partition import bound_in
from kvstore.request.row_layout import layout_of
from kvstore.table.access import Access, Opened
from logformat.binary_column import BinaryColumn
from logformat.ids import OFFSET_MAX, BucketId

SHORT_ROWS = 256
"""Up to this number of rows are read at once: to hold a view for them costs more than they do."""
LIMITED_ROWS = 1024
"""A scan with a limit reads so many rows that an index names at a time."""
B = TypeVar("B")
H = TypeVar("H", bound=BucketReads)


class Reading:
    """An open table, as its reads use it; any thread may.

    Args:
        opened: What the process has open of the table.
        access: Whether the store is open.

    Attributes:
        handles: One for each bucket, in order.
        fixed: The definition by which columns are called whatever they are called by now; None for the current one.
    """

    def __init__(self, opened: Opened, access: Access) -> None:
        self.access = access
        self.fixed: TableDefinition | None = None
        self.use(opened)

    def use(self, opened: Opened) -> None:
        """Read from now on what the process has open of the table, or of the copy of it that has replaced it."""
        self.handles = opened.handles
        self._only = self.handles[0] if len(self.handles) == 1 else None
        self._one_moment = opened.one_moment
        self.meter = opened.meter
        self.gets = opened.meter.gets
        self._searches: tuple[TableDefinition, list[SingleSearches]] | None = None
        self.use_catalog(opened.catalog)

    def use_catalog(self, catalog: CatalogReads) -> None:
        """Ask another catalog whether the table is there, and for its definition."""
        self._newest = catalog
        self.catalog = catalog if self.fixed is None else FixedCatalog(catalog, self.fixed)
        self.single = SingleReads(self.handles, self.keyed, self.latest)

    def with_fixed(self, definition: TableDefinition) -> Self:
        """The same, for a caller that calls the columns by this definition in more than one call."""
        other = copy(self)
        other.fixed = definition
        other.use_catalog(self._newest)
        return other

    # The definition

    def current(self) -> TableDefinition:
        """Definition of the table as the catalog has it now, or the fixed one.

        Raises:
            NoSuchTable, StoreClosed: The table was dropped, or the store closed.
        """
        self.access.check_open()
        return self.catalog.definition()

    def latest(self) -> TableDefinition:
        """Definition as the catalog has it now, in any case: it has the schemas of all rows that are stored.

        Raises:
            NoSuchTable, StoreClosed: The table was dropped, or the store closed.
        """
        self.access.check_open()
        return self._newest.definition()

    def keyed(self) -> TableDefinition:
        """The current definition, of a table with a key; raises what :meth:`current` raises.

        Raises:
            UnsupportedOperation: It is a log table.
        """
        return self.keyed_in(self.current())

    @staticmethod
    def keyed_in(definition: TableDefinition) -> TableDefinition:
        """The definition, if the table has a key; raises what :meth:`keyed` raises."""
        if definition.primary_key is None:
            raise UnsupportedOperation("A log table has no key; read it with changelog().", table=definition.name)
        return definition

    # Buckets

    @property
    def buckets(self) -> list[BucketId]:
        """Numbers of all buckets."""
        return [BucketId(bucket) for bucket in range(len(self.handles))]

    def number_of(self, bucket: int) -> BucketId:
        """The number of a bucket, once it is verified; raises what :meth:`current` raises.

        Raises:
            InvalidRequest: The table has no such bucket.
        """
        self.current()
        if not 0 <= integer("bucket", bucket) < len(self.handles):
            raise InvalidRequest("The table has no such bucket.", bucket=bucket, buckets=len(self.handles))
        return BucketId(bucket)

    @contextmanager
    def one_moment(self, *bounds: Any) -> Iterator[None]:
        """See :meth:`kvstore.table.access.Opened.one_moment`; an error in it is :meth:`reporting_the_cause`."""
        with self.reporting_the_cause(), self._one_moment(*bounds):
            yield

    @contextmanager
    def reporting_the_cause(self) -> Iterator[None]:
        """Report a table that was dropped, or a closed store, instead of the error that it causes."""
        try:
            yield
        except (StoreError, OSError):
            self.current()
            raise

    # Rows and changes

    def rows(
        self,
        definition: TableDefinition,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
        span: Span | None = None,
        *,
        by_index: bool = True,
    ) -> pa.RecordBatchReader:
        """Rows by the columns of a definition, whatever they are called by now; see :meth:`ReadTable.scan`.

        Args:
            span: With it, the rows of several buckets come in the order of their keys, else one bucket after the other.
            by_index: Whether a secondary index is used if one helps.
        """
        if filter is None and as_of is None and (few := self.few(definition, columns, limit, span)) is not None:
            return pa.RecordBatchReader.from_batches(few.schema, self.while_current(iter(few.to_batches())))
        self.current()
        names = names_of(columns)
        schema = scan_schema(definition, names)
        passing = None if filter is None else RowFilter(filter, definition.schema)
        if limit is not None:
            limit = integer_within("limit", limit, 0, OFFSET_MAX)
        wanted, within = schema.names, span or Span()
        merges = span is not None and span.bucket is None and len(self.handles) > 1
        if merges:
            wanted = [*wanted, *(name for name in definition.primary_key or () if name not in wanted)]
        if filter is not None:  # pyarrow does not report which columns it uses
            wanted = definition.schema.names
        handles = self.handles if within.bucket is None else [self.handles[within.bucket]]
        batch_rows = max(SCAN_ROWS // len(handles), SHORT_ROWS) if merges else SCAN_ROWS
        is_cut = limit is not None and filter is None and as_of is None  # else more rows are read than are returned
        if limit is not None and is_cut:
            batch_rows = max(1, min(batch_rows, limit))
        buckets = [] if as_of is None else self.buckets
        bounds = {bucket: bound_in("as_of", as_of, bucket, buckets) for bucket in buckets}
        asked = keys = None
        if passing is not None and as_of is None:
            conditions = passing.understood.conditions
            keys = sought(definition, conditions)
            if by_index:
                asked = Asked.of(definition, conditions, is_part=within.keys != ALL_KEYS)

        def read(handle: BucketReads, view: View) -> Iterator[pa.RecordBatch]:
            current, bound = self.latest().named_as(definition), bounds.get(handle.identity.bucket_id)
            now = view.state().applied_offset
            then = now if bound is None else offset_as_of(bound, handle.log, now)
            ranges = [within.keys]
            if passing is not None:
                named = None if asked is None else asked.many_named(view, current)
                those = None if keys is None else keys.keys
                if those is None and named is not None:
                    those = named.keys
                if those is not None:
                    parts = self._rows_of(those, handle, view, current, wanted, within, SCAN_ROWS)
                    return passing.passing(parts)
                possible = ranges_where(view, current, passing.expression, passing.understood, beyond=then != now)
                ranges = [each for each in (common(each, within.keys) for each in possible) if each is not None]
            parts = rows_as_of(
                *(view, handle.log, current, then, wanted, ranges), reverse=within.reverse, batch_rows=batch_rows
            )
            return parts if passing is None else passing.passing(parts)

        ranges = None
        if keys is not None:
            ranges = [each for each in (common(each, within.keys) for each in keys.ranges) if each is not None]
        elif as_of is None and passing is None and (span is not None or limit is not None):
            ranges = [within.keys]
        names_few = asked is not None or (keys is not None and keys.keys is not None)

        def chosen(rows: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
            passed = rows if passing is None else passing.passing(rows)
            return [some for some in (passed if limit is None else first_rows(passed, limit)) if some.num_rows]

        def at_once(handle: BucketReads) -> Iterator[pa.RecordBatch] | None:
            parts = None
            if ranges is not None:
                first = self._first(handle, definition, wanted, ranges, limit if is_cut else None, within.reverse)
                parts = None if first is None else chosen(first)
            if parts is None and names_few:
                at_a_time = SCAN_ROWS if limit is None else LIMITED_ROWS
                parts = self._named(handle, definition, keys, asked, wanted, within, at_a_time, chosen)
            return None if parts is None else self.while_current(iter(parts))

        with self.one_moment(as_of):
            parts = [at_once(handle) or self.held(handle, read) for handle in handles]
        rows: Iterator[pa.RecordBatch] = chain.from_iterable(parts)
        if merges:
            rows = merged(parts, definition, reverse=within.reverse)
        if wanted != schema.names:
            rows = (batch.select(schema.names) for batch in rows)
        return pa.RecordBatchReader.from_batches(schema, rows if limit is None else first_rows(rows, limit))

    def few(
        self, definition: TableDefinition, columns: Sequence[str] | None, limit: int | None, span: Span | None
    ) -> pa.Table | None:
        """Rows that are all in one bucket, read at once; None if they are not, or not a few. Raises as :meth:`rows`."""
        if limit is None:
            if span is None:
                return None
        elif type(limit) is not int or not 0 <= limit <= SHORT_ROWS:
            return None
        within = span or Span()
        handle = self._only if within.bucket is None else self.handles[within.bucket]
        if handle is None:
            return None
        schema = definition.schema if columns is None else scan_schema(definition, names_of(columns))
        try:
            with self._one_moment():
                batches = self._first(handle, definition, schema.names, [within.keys], limit, within.reverse)
        except (StoreError, OSError):
            self.current()
            raise
        return None if batches is None else pa.Table.from_batches(batches, schema)

    def _first(
        self,
        handle: BucketReads,
        definition: TableDefinition,
        names: Sequence[str],
        ranges: Sequence[KeyRange],
        limit: int | None,
        reverse: bool,
    ) -> list[pa.RecordBatch] | None:
        """Rows of a bucket in some ranges, read at once: neither is anything committed for it, nor a view held.

        Args:
            names: Columns to return.
            ranges: Disjoint and in order.
            limit: Number of rows that are wanted, at most.

        Returns:
            None if they are not a few.
        """
        if len(ranges) > SHORT_ROWS or (limit is not None and limit > SHORT_ROWS):
            return None
        ordered = ranges[::-1] if reverse else ranges
        pairs = None
        try:
            memtable = handle.memtable()
            if memtable is not None:
                pairs = memtable.first_at_once(lambda first: _first_of(first, ordered, limit, reverse))
        except (StoreError, OSError):
            self.current()  # a dropped table or closed store is the cause to report
            memtable = None  # perhaps the bucket was given to another process; else the view says what it is
        if memtable is None:
            with handle.latest() as view:
                pairs = _first_of(view.first, ordered, limit, reverse)
        if not pairs:
            return None if pairs is None else []
        # Read after the rows, so that it has the schemas of all.
        return [rows_of_pairs(layout_of(self.latest().named_as(definition)), pairs, names)]

    def _named(
        self,
        handle: BucketReads,
        definition: TableDefinition,
        keys: Sought | None,
        asked: Asked | None,
        names: Sequence[str],
        within: Span,
        batch_rows: int,
        chosen: Callable[[Iterable[pa.RecordBatch]], list[pa.RecordBatch]],
    ) -> list[pa.RecordBatch] | None:
        """Rows of a bucket that the key or an index names, read at once; None if they are not a few.

        Args:
            keys: Those that the filter names, as far as they are known.
            names: Columns to return, those of the filter among them.
            chosen: What is returned of the rows; those that it does not ask for are not read.
        """
        with handle.latest() as view:
            current = self.latest().named_as(definition)
            those = None if keys is None else keys.keys
            if those is None and asked is not None:
                named = asked.few_named(view, current)
                those = None if named is None else named.keys
            if those is None or len(those) > AT_ONCE_ROWS:
                return None
            return chosen(self._rows_of(those, handle, view, current, names, within, batch_rows))

    def _rows_of(
        self,
        keys: BinaryColumn,
        handle: BucketReads,
        view: View,
        definition: TableDefinition,
        names: Sequence[str],
        within: Span,
        batch_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        some, now = keys_within(keys, within.keys), view.state().applied_offset
        return rows_of_keys(
            *(view, handle.log, definition, now, names, some), reverse=within.reverse, batch_rows=batch_rows
        )

    def found_one(self, columns: Mapping[str, Any]) -> dict[str, Any] | Unknown | None:
        """The row of :meth:`ReadTable.find_one`, if it can be found without Arrow."""
        definition, searches = self._single_searches()
        if len(columns) != 1:
            return UNKNOWN
        [(column, value)] = columns.items()
        if not searches[0].serves(column, value):
            return UNKNOWN
        at_once = self._found_at_once(searches[0], column, value, 1)
        if at_once is not UNKNOWN:
            return at_once[0] if at_once else None
        with self.one_moment():
            for handle, search in zip(self.handles, searches, strict=True):
                with handle.latest() as view:
                    # Read after the view: else it may have rows of a schema that the definition does not have.
                    row = search.find(view, column, value) if self.latest() is definition else UNKNOWN
                if row is not None:
                    return row
        return None

    def found_few(self, columns: Mapping[str, Any]) -> pa.Table | None:
        """The rows of :meth:`ReadTable.find`, if there are few and they can be found without Arrow."""
        _, searches = self._single_searches()
        if len(columns) != 1 or not searches[0].makes_tables:
            return None
        [(column, value)] = columns.items()
        if not searches[0].serves(column, value):
            return None
        rows = self._found_at_once(searches[0], column, value, FEW_KEYS)
        return None if rows is UNKNOWN else searches[0].table_of(rows)

    def _found_at_once(
        self, search: SingleSearches, column: str, value: Any, most: int
    ) -> list[dict[str, Any]] | Unknown:
        """Up to so many rows of a table with one bucket, which this process writes."""
        only = self._only
        if only is None:
            return UNKNOWN
        try:
            memtable = only.memtable()
            return UNKNOWN if memtable is None else search.find_in(memtable, column, value, most)
        except (StoreError, OSError):
            self.current()  # a dropped table or closed store is the cause to report
            return UNKNOWN  # perhaps the bucket was given to another process; else the general way says what it is

    def _single_searches(self) -> tuple[TableDefinition, list[SingleSearches]]:
        """The current definition, and the searches in each bucket by it; raises what :meth:`keyed` raises."""
        definition, searches = self.current(), self._searches
        if searches is None or searches[0] is not definition:
            self.keyed_in(definition)
            self._searches = searches = definition, [SingleSearches(definition) for _ in self.handles]
        return searches

    def found(self, definition: TableDefinition, conditions: Sequence[Condition]) -> pa.Table:
        """Rows that meet all conditions, by a secondary index if one helps; see :meth:`ReadTable.find`."""
        self.current()
        asked = Asked.of(definition, conditions)
        table = None if asked is None else self._found_by_index(asked)
        return (
            self.rows(definition, filter=expression_of(conditions), by_index=False).read_all()
            if table is None
            else table
        )

    def _found_by_index(self, asked: Asked) -> pa.Table | None:
        """All rows for which the conditions are true; None if they are to be scanned for."""
        schema, batches = asked.definition.schema, []
        with self.one_moment():
            for handle in self.handles:
                with handle.latest() as view:
                    current = self.latest().named_as(asked.definition)
                    named = asked.named(view, current)
                    if named is None:
                        return None
                    batches.append(rows_by(named, view, current, asked.conditions).select(schema.names))
        return pa.Table.from_batches(batches, schema)

    def explained(self, definition: TableDefinition, filter: pc.Expression | Sequence[Condition]) -> str:
        """How rows with a condition are found; see :meth:`ReadTable.explain`."""
        if isinstance(filter, pc.Expression):
            conditions = understood(filter, definition.schema).conditions
        else:
            conditions, filter = filter, expression_of(filter)
        keys, asked = sought(definition, conditions), Asked.of(definition, conditions)
        if keys is not None and keys.keys is not None:
            return f"lookup of {len(keys.keys)} key{'s' * (len(keys.keys) != 1)}"
        used: set[str] = set()
        ranges = whole = 0
        with self.one_moment():
            for handle in self.handles:
                with handle.latest() as view:
                    current = self.latest().named_as(definition)
                    named = None if asked is None else asked.named(view, current)
                    if named is not None:
                        used.add(named.search.explained(definition))
                        continue
                with handle.snapshot() as view:
                    current = self.latest().named_as(definition)
                    bounds, possible = view.bounds(), ranges_where(view, current, filter)
                    ranges += len(possible)
                    whole += bounds is not None and any(
                        each.start <= bounds[0] and (each.stop is None or each.stop > bounds[1]) for each in possible
                    )
        if whole:
            used.add("scan of all rows")
        elif ranges:
            used.add(f"scan of {ranges} range{'s' * (ranges > 1)} of keys")
        return "; ".join(sorted(used)) or "nothing is read: no key can have such a row"

    def changelog(
        self,
        definition: TableDefinition,
        start: Start,
        end: End,
        bucket: int | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        filter: pc.Expression | None = None,
    ) -> ChangelogReader:
        """Changes by the columns of a definition, whatever they are called by now; see :meth:`ReadTable.changelog`."""
        schema = changelog_schema(definition, names_of(columns))
        waits = self.waits(bucket)
        changes = self.changes(definition, schema.names, start, end, bucket, follow, filter=filter, waits=waits)
        return ChangelogReader(schema, changes, waits)

    def changes(
        self,
        definition: TableDefinition,
        names: Sequence[str],
        start: Start,
        end: End,
        bucket: int | None = None,
        follow: bool = False,
        *,
        whole_updates: bool = False,
        filter: pc.Expression | None = None,
        waits: Waits | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The batches of :meth:`changelog`.

        Args:
            names: Columns of the changelog.
            whole_updates: See :func:`kvstore.read.changelog.changes_between`.
        """
        if not isinstance(follow, (bool, np.bool_)):
            raise InvalidRequest("`follow` is True or False.", follow=shown(follow))
        how = {"follow": bool(follow), "whole_updates": whole_updates}
        readers = self.readers(definition, names, start, end, bucket, **how, filter=filter)
        return self.while_current(together(readers, waits or self.waits(bucket)))

    def readers(
        self,
        definition: TableDefinition,
        names: Sequence[str],
        start: Start,
        end: End,
        bucket: int | None,
        *,
        follow: bool,
        whole_updates: bool = False,
        filter: pc.Expression | None = None,
    ) -> list[Iterator[pa.RecordBatch | None]]:
        """Readers of the changes of each bucket, or of one; see :meth:`changes`."""
        self.current()
        shape = None
        if filter is not None:
            check_shapes(definition, filter)
            shape, whole_updates = Shape(definition, filter), True

        def current() -> TableDefinition:
            now = self.latest()
            if shape is not None:
                shape.check(now, definition)
            return now.named_as(definition)

        wanted = self.buckets if bucket is None else [self.number_of(bucket)]
        if isinstance(start, str) and start == "full":
            self.keyed()
        readers = []
        # What is followed may begin or end later than what there is now.
        with self.one_moment(*([] if follow else [start, end])):
            for each in wanted:
                handle = self.handles[each].for_one_reader()
                reader = ChangeReader(handle, current, names, whole_updates, shape)
                begin, stop = bound_in("start", start, each, wanted), bound_in("end", end, each, wanted)
                readers.append(reader.read(begin, stop, follow=follow))
        return readers

    def waits(self, bucket: int | None) -> Waits:
        """Waits of a reader of all buckets, or of one."""
        return Waits(self.handles if bucket is None else [self.handles[self.number_of(bucket)]])

    def origins(self) -> Origins:
        """Says of batches of the log who wrote them, by what the catalog says now."""
        return Origins.known_to(self._newest)

    def past(self) -> Past:
        """What reads of the past need."""
        self.current()
        return Past(self.handles, self.keyed, self.latest, self.origins)

    def held(self, handle: H, read: Callable[[H, View], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches that ``read`` returns for a view, taken now and closed with the iterator."""

        def run() -> Iterator[pa.RecordBatch]:
            with handle.snapshot() as view:
                batches = read(handle, view)
                yield pa.record_batch([], names=[])  # for the caller below: the view is taken
                yield from self.while_current(batches)

        iterator = run()
        next(iterator)
        return iterator

    def while_current(self, batches: Iterator[B]) -> Iterator[B]:
        """The same batches, as long as the table exists and the store is open here."""
        self.current()
        with self.reporting_the_cause():
            for batch in batches:
                yield batch
                self.current()


def _first_of(
    first: First,
    ranges: Sequence[KeyRange],
    limit: int | None,
    reverse: bool,
) -> list[tuple[bytes, bytes]] | None:
    """Keys and values of the first rows in some ranges; None if they are not a few."""
    pairs: list[tuple[bytes, bytes]] = []
    most = SHORT_ROWS + 1 if limit is None else limit
    for each in ranges:
        if len(pairs) == most:
            return pairs if most == limit else None
        some, is_all = first(most - len(pairs), each.start, each.stop, reverse=reverse)
        pairs += some
        if not is_all and len(pairs) != limit:
            return None
    return pairs


def names_of(columns: Any) -> list[str] | None:
    """Names of columns that a caller gave, verified; None for all."""
    return None if columns is None else column_names("columns", columns)
