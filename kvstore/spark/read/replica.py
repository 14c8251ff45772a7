"""Reads of a replica, or of shared tables, in their place: each executor reads some of the objects, on any machine.

* Loading pins the names of the objects. Executors share nothing else, so they may run anywhere.
* Changes are read directly from the objects. One task rebuilds the rows of a bucket from all its objects, in a
  temporary index.
* Of a stream, the process that lives as long as the query follows the table. Ends of batches are consistent cuts, or
  epochs of a shared table, so no commit over several buckets is in a batch in part. With a limit that is so for shared
  tables only.
* An offset of a stream has the epoch of the leader, so that a stream notices a later leader that lacks what it has
  read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import gettempdir

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.clock import SystemClock
from kvstore.errors import NoSuchTable, OffsetOutOfRange, UnsupportedOperation
from kvstore.read.binlog import binlog_of, binlog_schema, changelog_columns
from kvstore.read.pruning import possible_places
from kvstore.read.scan import KeyRange
from kvstore.replica.client import ObjectStore
from kvstore.replica.read.parts import Changes
from kvstore.replica.read.reader import ReplicaReader
from kvstore.replica.read.table import ReplicaTable
from kvstore.replica.read.tail import ReplicaTail, Tail
from kvstore.shared.reading import SharedTail
from kvstore.shared.table import SharedTable, has_shared_tables
from kvstore.spark.options import Kind, Options, Place
from kvstore.spark.read.address import TableAddress, Where
from kvstore.spark.read.offsets import StreamOffset
from kvstore.spark.read.tasks import (
    Aggregate,
    Loaded,
    Part,
    Pinned,
    ReadPiece,
    ReadRange,
    ReadTask,
    Value,
    columns_needed,
    columns_of_rows,
    tasks_of,
)
from logformat.ids import Epoch, Offset

TASK_BYTES_MIN, TASK_BYTES_MAX = 1 << 20, 64 << 20
"""Bytes of a task's objects: fewer are not worth a task; more are divided, because executors may outnumber cores."""


def load(url: str, options: Options) -> Loaded:
    """Find the table that options name, and pin the objects that they select.

    Raises:
        InvalidRequest, UnsupportedOperation: The table does not have what the options select.
        MissingVersion: The replica has a gap before the selected end.
        ReplicaBehind: The replica does not reach as far.
        CorruptData, Unavailable: An object that has to be read is damaged, or can't be read.
    """
    address, table = found(url, options)
    columns = address.stored(options.columns)
    try:
        return Loaded(columns, Pinned(address, tuple(_ranges(address, table, options))))
    except OffsetOutOfRange as error:
        return Loaded(columns, None, late=error)


def found(url: str, options: Options) -> tuple[TableAddress, ReplicaTable]:
    """The table of a replica that options name, or the shared table; see :meth:`ReplicaTable.of` for errors."""
    if options.filter is not None:
        raise UnsupportedOperation(
            "Option `filter` is for the changes of a store; leave it out, and use where() for single changes.", url=url
        )
    client = ObjectStore(url)
    where = Where.SHARED if has_shared_tables(client) else Where.REPLICA
    if where is Where.SHARED:
        table = SharedTail(SharedTable.find(url, client, options.table), SystemClock()).table
    else:
        table = ReplicaTable.of(url, options.table, client)
    return TableAddress(url, table.store_id, table.definition, options.kind, where), table


def _ranges(address: TableAddress, table: ReplicaTable, options: Options) -> Iterator[ReadRange]:
    if address.kind is Kind.ROWS:
        ends = table.ends() if options.as_of is None else table.offsets_as_of(options.as_of)
        yield from (ReadRange(bucket, end, end, rows=table.rows(bucket, end)) for bucket, end in ends.items())
        return
    start = options.start or "earliest"
    ranges = table.offset_ranges(start, options.end or "latest", fail_on_data_loss=options.fail_on_data_loss)
    if start == "full":
        address.check_key()
    for bucket, (first, last) in ranges.items():
        yield _with_objects(table, ReadRange(bucket, first, last), rows=start == "full")


def _with_objects(table: ReplicaTable, given: ReadRange, *, rows: bool) -> ReadRange:
    return replace(
        given,
        rows=table.rows(given.bucket, given.start) if rows else None,
        changes=table.changes(given.bucket, given.start, given.end) if given.start < given.end else None,
    )


class ReplicaReads:
    """Reads of the objects of a replica, or of a shared table; see :class:`kvstore.spark.read.tasks.Reads`."""

    def __init__(self, address: TableAddress) -> None:
        self.tasks_max = TASK_BYTES_MAX / TASK_BYTES_MIN
        self._address = address

    @cached_property
    def _reader(self) -> ReplicaReader:
        return ReplicaReader(ObjectStore(self._address.path), self._address.store_id, self._address.definition)

    def hold(self, pinned: Pinned) -> None:
        """A replica keeps objects for as long as it was told."""

    def looks_up(self, keys: int) -> bool:
        """False: the rows of a bucket are rebuilt as a whole."""
        del keys
        return False

    def aggregates(self, ranges: Sequence[ReadRange], wanted: Sequence[Aggregate]) -> list[Value] | None:
        """None: rows are counted by reading them."""
        del ranges, wanted
        return None

    def parts(self, given: ReadRange, filter: pc.Expression | None) -> Iterator[Part[ReadPiece]]:
        """Parts of a range that may have rows that pass a filter, by the names of the objects."""
        if given.rows is not None:
            rows = ReadPiece(given.bucket, given.start, given.end, rows=given.rows)
            yield Part(given.rows.bytes / TASK_BYTES_MIN, lambda _: [rows])
        if given.changes is not None:
            for possible in _possible(given.changes, self._address.stored(), filter):

                def cut(parts: int, changes: Changes = possible) -> list[ReadPiece]:
                    return [
                        ReadPiece(each.bucket, each.start, each.end, changes=each) for each in changes.pieces(parts)
                    ]

                yield Part(possible.bytes / TASK_BYTES_MIN, cut)

    def batches(
        self, piece: ReadPiece, target: pa.Schema, filter: pc.Expression | None, needed: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """What a piece has.

        Raises:
            CorruptData: An object is missing or damaged.
            Unavailable: The replica can't be reached.
            StoreFull, LogFailed: The local disk is full or failed, which holds the temporary index.
        """
        kind, definition, reader = self._address.kind, self._address.definition, self._reader
        wanted = list(needed or columns_needed(target, kind, definition.primary_key))
        if kind is Kind.ROWS:
            assert piece.rows is not None
            return reader.rows(piece.rows, wanted, filter, room())
        whole = binlog_schema(definition, columns_of_rows(definition.schema, target)) if kind is Kind.BINLOG else None
        names = wanted if whole is None else changelog_columns(whole)
        if piece.rows is not None:
            changes = reader.inserts(piece.rows, names, room())
        else:
            assert piece.changes is not None
            changes = reader.changes(piece.changes, names, whole_updates=whole is not None)
        return changes if whole is None else binlog_of(changes, whole)


class FollowedReplica:
    """A table of a replica, or a shared one, that a stream follows; see :class:`kvstore.spark.read.followed.Followed`.

    Every method that needs the objects raises Unavailable if they can't be reached, MissingVersion if the replica has a
    hole, and CorruptData if an object that has to be read is damaged.
    """

    def __init__(self, address: TableAddress, options: Options) -> None:
        if options.consumer is not None:
            raise UnsupportedOperation(
                "A shared table has no consumers; leave option `consumer` out."
                if address.where is Where.SHARED
                else "A replica has no consumers; leave option `consumer` out, and have the replica keep changes for "
                "longer than the stream may stop (`kvstore replica add --retention-days`).",
                consumer=options.consumer,
            )
        self._address = address
        self._options = options
        self._known: Tail | None = None

    @property
    def leader_epoch(self) -> Epoch | None:
        """Epoch of the leader that shipped what was last looked at; None if nothing leads."""
        return self._tail().leader_epoch

    def close(self) -> None:
        """Forget everything."""
        self._known = None

    def _tail(self) -> Tail:
        if self._known is None:
            self._known = _tail_of(self._address)
        return self._known

    def renew(self) -> None:
        """Take what was shipped, or published, since."""
        if self._known is not None:
            self._known.poll()
        # The columns of a stream are those that it began with.
        self._tail().table.definition.check_names_of(self._address.definition.schema_id)

    def bounds(self) -> dict[int, tuple[Offset, Offset]]:
        """Start and end of the changes of each bucket."""
        return self._tail().table.bounds()

    def begin_at(self, start: Place) -> tuple[dict[int, Offset], dict[int, int] | None]:
        """For each bucket, where the stream starts; if that is with the rows, the time of the last commit before."""
        tail, rows_of = self._tail(), None
        if start == "full":
            self._address.check_key()
            rows_of = {bucket: tail.last_timestamp(bucket, end) for bucket, end in tail.table.ends().items()}
        ranges = tail.table.offset_ranges(start, "latest", fail_on_data_loss=self._options.fail_on_data_loss)
        return {bucket: Offset(log_start) for bucket, (log_start, _) in ranges.items()}, rows_of

    def check_continues(self, before: StreamOffset) -> None:
        """Verify that later leaders have the changes before an offset."""
        if before.leader_epoch is not None:
            self._tail().check_leader(before.by_bucket, before.leader_epoch)

    def whole_ends(
        self, before: Mapping[int, Offset], ends: Mapping[int, Offset], records: int
    ) -> dict[int, Offset] | None:
        """Ends of a read that has each write whole; None if the objects do not say of which write they are."""
        offsets, is_whole = self._tail().whole_ends(before, ends, records)
        return offsets if is_whole else None

    def commit_end(self, bucket: int, start: Offset, end: Offset, records: int) -> Offset:
        """The end of a read of whole commits: at most ``records`` changes, but at least one commit."""
        return self._tail().commit_end(bucket, start, end, records)

    def key_after(self, bucket: int, keys: KeyRange, rows: int, as_of: Offset) -> tuple[bytes | None, int]:
        """None: the rows of a bucket are rebuilt as a whole, so a batch has those of one bucket."""
        del bucket, keys, as_of
        return None, rows

    def tasks(self, ranges: Sequence[ReadRange], cores: int | None) -> list[ReadTask]:
        """Tasks that read the ranges.

        Raises:
            UnsupportedOperation: A range begins between the rows of a bucket, in a checkpoint of a store.
        """
        table = self._tail().table
        address = replace(self._address, definition=table.definition)
        if any(each.keys is not None and each.keys.start > KeyRange().start for each in ranges):
            raise UnsupportedOperation(
                "The checkpoint lies between the rows of a bucket, and a replica has the rows of a bucket as a whole; "
                "continue with the store until all rows are read, or start with a new checkpoint.",
                url=self._address.path,
            )
        complete = [_with_objects(table, each, rows=each.inserted_at is not None) for each in ranges]
        return tasks_of(address, ReplicaReads(address), complete, cores=cores)

    def register(self, before: Mapping[int, Offset], *, began: bool) -> None:
        """There are no consumers."""

    def committed(self, end: StreamOffset) -> None:
        """Forget the names of the objects that were read."""
        if not end.rows_from:
            self._tail().forget(end.by_bucket)


def _tail_of(address: TableAddress) -> Tail:
    """The table from now on.

    Raises:
        NoSuchTable: It was dropped.
        MissingVersion, ReplicaBehind, CorruptData, Unavailable: It can't be read.
    """
    if address.where is Where.REPLICA:
        return ReplicaTail(address.path, address.definition.id)
    shared = SharedTable.find(address.path, ObjectStore(address.path), address.name)
    if shared.definition.id != address.table_id:
        raise NoSuchTable("The table was dropped since it was loaded; load it again.", table=address.name)
    return SharedTail(shared, SystemClock())


def _possible(piece: Changes, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[Changes]:
    """Parts of a read that may have rows that pass a filter, by the names of the objects."""
    if filter is None:
        yield piece
        return
    offset, version = pc.field("_log_offset"), pc.field("_commit_version")
    of_bucket = pc.field("_bucket") == pa.scalar(piece.bucket, pa.int32())
    guarantees = [
        of_bucket
        & ((offset >= each.start) & (offset < each.until))
        & ((version >= each.start) & (version < each.until))
        for each in piece.ranges
    ]
    places = possible_places(guarantees, schema, filter)
    while places:
        count = next((at for at, number in enumerate(places) if number != places[0] + at), len(places))
        yield piece.within(piece.ranges[places[0] : places[0] + count])
        places = places[count:]


def room() -> Path:
    """A directory for temporary indexes: Spark's own, which it clears when the executor ends, if there is one."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((Path(each) for each in given if each and os.access(each, os.W_OK)), Path(gettempdir()))
