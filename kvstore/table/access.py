"""What a table asks of its open store, and what its reads ask of the open table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from kvstore.bucket.reads import BucketReads
from kvstore.meta.table_catalog import CatalogReads
from kvstore.process.meter import TableMeter


class Access(Protocol):
    """Whether an open store takes a call now: a :class:`kvstore.store.session.Session`."""

    def check_open(self) -> None:
        """Refuse if the store is closed."""

    def check_writable(self) -> None:
        """Refuse if the store may not be written."""

    def check_registers(self) -> None:
        """Refuse if readers may not be registered."""


class Opened(Protocol):
    """A table that is open for reads: of a store, or of a replica or a place of shared tables."""

    @property
    def handles(self) -> Sequence[BucketReads]:
        """One for each bucket, in order."""

    @property
    def catalog(self) -> CatalogReads:
        """The table in the catalog."""

    @property
    def meter(self) -> TableMeter:
        """Counts and durations of its work."""

    def one_moment(self, *bounds: object) -> AbstractContextManager[object]:
        """While this is open, all buckets that are one moment's are read as of the same moment.

        Args:
            bounds: Starts, ends or moments that the call reads.

        Raises:
            ReplicaBehind: The table ends before one of them that is a time.
        """
