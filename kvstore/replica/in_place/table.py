"""A table of a replica or of a place of shared tables, opened there: the reads of a table, over its objects."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvstore.clock import Clock
from kvstore.errors import ReplicaBehind
from kvstore.log.segments import LogIdentity
from kvstore.process.meter import TableMeter
from kvstore.read.changelog import milliseconds
from kvstore.replica.in_place.bucket import ReplicaBucket
from kvstore.replica.in_place.followed import FollowedTable
from kvstore.table.access import Access
from kvstore.table.read_only import ReadOnlyTable
from logformat.ids import BucketId


class OpenedTable:
    """The table as its reads use it: see :class:`kvstore.table.access.Opened`.

    Args:
        what: What has the table, for messages.
    """

    def __init__(self, followed: FollowedTable, meter: TableMeter, what: str) -> None:
        with followed.one_moment() as table:
            ids = table.store_id, table.definition.id
            buckets = [BucketId(bucket) for bucket in range(table.definition.buckets)]
        self.handles: Sequence[ReplicaBucket] = [ReplicaBucket(followed, LogIdentity(*ids, id)) for id in buckets]
        self.catalog = followed
        self.meter = meter
        self._what = what

    @contextmanager
    def one_moment(self, *bounds: object) -> Iterator[None]:
        """See :meth:`kvstore.table.access.Opened.one_moment`."""
        for bound in bounds:
            if isinstance(bound, dt.datetime):
                time_ms = milliseconds(bound)
                as_of_ms = self.catalog.table_at(time_ms).as_of_ms
                if time_ms > as_of_ms:
                    raise ReplicaBehind(f"The {self._what} ends before this time.", time=bound, as_of_ms=as_of_ms)
        with self.catalog.one_moment():
            yield


class TableInPlace(ReadOnlyTable):
    """A table that is opened in its place.

    Args:
        what: What has the table, for messages.
        refused: The message of what is refused, with ``{name}`` for the name.
    """

    def __init__(self, followed: FollowedTable, access: Access, clock: Clock, what: str, refused: str) -> None:
        super().__init__(OpenedTable(followed, TableMeter(clock), what), access, refused)
        self._followed = followed
        self._what = what

    def __repr__(self) -> str:
        return f"<kvstore.Table {self._followed.name} of a {self._what}>"  # to count the rows would take reading them
