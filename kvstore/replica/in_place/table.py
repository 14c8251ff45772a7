"""A table of a replica that is opened in place: the reads of a table, over the replica's objects."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.bucket.handle import BucketHandle
from kvstore.clock import Clock
from kvstore.errors import ReplicaBehind, UnsupportedOperation
from kvstore.history.past import Past
from kvstore.meta.state import TableDefinition
from kvstore.process.meter import TableMeter
from kvstore.read.changelog import End, Start, milliseconds
from kvstore.replica.in_place.bucket import ReplicaBucket, ReplicaChangeReader
from kvstore.replica.in_place.followed import FollowedTable
from kvstore.table.access import Access
from kvstore.table.everyday import EverydayReads
from kvstore.table.open_table import OpenTable
from kvstore.table.table import Table
from logformat.ids import BucketId
from logformat.rows.intake import Keys

T = TypeVar("T")

REFUSED = (
    "A replica that is opened in place is only read, and has no `{name}`. Use the store that ships to it; or, for "
    "everything that reads, a copy on this machine: kvstore.follow(url, directory)."
)
READS = (
    *("name", "identity", "schema", "schema_id", "primary_key", "buckets", "bucket_key", "options"),
    *("get", "lookup", "prefix_lookup", "scan", "count", "offsets", "buckets_of"),
    *("changelog", "binlog", "follow", "history"),
    *("to_arrow", "to_pandas", "to_polars", "dataset", "changes_dataset", "use", "use_catalog"),
    *("scan_schema", "changelog_schema", "binlog_schema"),
)


def only(allowed: Collection[str], refused: str = REFUSED) -> Callable[[type[T]], type[T]]:
    """Refuse every public name that a class inherits, but those, and assignments and deletions by ``[]``.

    Args:
        refused: The message, with ``{name}`` for the name.
    """

    def refuse_others(of: type[T]) -> type[T]:
        names = {name for name in dir(of) if not name.startswith("_") or name in ("__setitem__", "__delitem__")}
        for name in names - {*allowed, *vars(of)}:
            refuse = _refusal(refused.format(name=name))
            is_property = isinstance(inspect.getattr_static(of, name), property)
            setattr(of, name, property(refuse) if is_property else refuse)
        return of

    return refuse_others


def _refusal(message: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedOperation(message)

    return refuse


@dataclass(frozen=True)
class _Opened:
    """What :class:`kvstore.table.open_table.OpenTable` is of a store, as far as reads use it."""

    handles: Sequence[BucketHandle]
    catalog: FollowedTable
    meter: TableMeter


@only(READS)
class TableInReplica(Table):
    """A table of a replica in its place; whatever does not read raises UnsupportedOperation."""

    _change_reader = ReplicaChangeReader
    _what = "replica"
    """What has the table, for messages."""

    def __init__(self, followed: FollowedTable, access: Access, clock: Clock) -> None:
        with followed.one_moment() as found:
            place = found.store_id, found.definition.id
            buckets = [BucketId(bucket) for bucket in range(found.definition.buckets)]
        found_buckets = [ReplicaBucket(followed, *place, bucket) for bucket in buckets]
        handles = [bucket.as_handle() for bucket in found_buckets]
        self._followed = followed
        self._buckets_of_changes = [bucket.for_changes_only().as_handle() for bucket in found_buckets]
        opened = cast("OpenTable", _Opened(handles, followed, TableMeter(clock)))
        EverydayReads.__init__(self, opened, access)  # without what only writes need

    def lookup(self, keys: Keys) -> pa.Table:
        """See :meth:`kvstore.Table.lookup`."""
        with self._followed.one_moment():
            return super().lookup(keys)

    def prefix_lookup(self, prefix: Mapping[str, Any] | Sequence[Any]) -> pa.Table:
        """See :meth:`kvstore.Table.prefix_lookup`."""
        with self._followed.one_moment():
            return super().prefix_lookup(prefix)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
    ) -> pa.RecordBatchReader:
        """See :meth:`kvstore.Table.scan`.

        Raises:
            ReplicaBehind: The replica ends before the time ``as_of``.
        """
        self._check_reached(as_of)
        with self._followed.one_moment():
            return super().scan(columns, filter, limit, as_of)

    def count(self) -> int:
        """Number of rows; for a log table, number of appended records. Both are counted, which takes reading them."""
        with self._followed.one_moment() as found:
            self._access.check_open()
            if found.definition.primary_key is None:
                return sum(map(self._followed.appended, self._bucket_ids()))
            total = 0
            for handle in self._handles:
                with handle.latest() as view:
                    total += view.row_count()
            return total

    def history(self, key: Keys, start: Start = "earliest") -> pa.Table:
        """See :meth:`kvstore.Table.history`. Writers have no names in a shared table.

        Raises:
            ReplicaBehind: The replica ends before the time ``start``.
        """
        self._check_reached(start)
        with self._followed.one_moment():
            return super().history(key, start)

    def _past(self) -> Past:
        return Past(self._buckets_of_changes, self._keyed, self._followed.catalog)

    def __repr__(self) -> str:
        return f"<kvstore.Table {self._followed.name} of a {self._what}>"  # to count the rows would take reading them

    def offsets(self) -> dict[int, tuple[int, int]]:
        """For each bucket, the first offset that the replica has, and the offset after its last."""
        return {bucket: (int(start), int(end)) for bucket, (start, end) in self._followed.table().bounds().items()}

    def _readers(
        self,
        definition: TableDefinition,
        names: Sequence[str],
        start: Start,
        end: End,
        bucket: int | None,
        *,
        follow: bool,
        whole_updates: bool = False,
    ) -> list[Iterator[pa.RecordBatch | None]]:
        if not follow:
            self._check_reached(start)
            self._check_reached(end)
        with self._followed.one_moment():
            return super()._readers(definition, names, start, end, bucket, follow=follow, whole_updates=whole_updates)

    def _check_reached(self, place: object) -> None:
        if isinstance(place, dt.datetime):
            time_ms = milliseconds(place)
            as_of_ms = self._followed.table_at(time_ms).as_of_ms
            if time_ms > as_of_ms:
                raise ReplicaBehind(f"The {self._what} ends before this time.", time=place, as_of_ms=as_of_ms)
