"""Context shared by the parts of one bucket: its paths, its table in the catalog, disk, time and settings."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self
from uuid import UUID

from kvstore.bucket.commit_lock import CommitLock
from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.log.segments import LogIdentity
from kvstore.memtable.budget import Budget
from kvstore.meta.state import TableDefinition
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.writers import OpenCommit
from kvstore.options import StoreOptions
from kvstore.process.meter import TableMeter
from kvstore.request.request import Request
from logformat import paths
from logformat.ids import BucketId, Offset, TableId


@dataclass(frozen=True, slots=True)
class BucketPaths:
    """Directory of a bucket, and the identity that its log repeats."""

    directory: Path
    identity: LogIdentity

    @classmethod
    def of(cls, store: Path, store_id: UUID, table: TableId, bucket: BucketId) -> Self:
        """Paths of a bucket in a store."""
        return cls(paths.bucket_directory(store, table, bucket), LogIdentity(store_id, table, bucket))

    @property
    def log(self) -> Path:
        """Directory of its log."""
        return self.directory / paths.LOG

    @property
    def index(self) -> Path:
        """Directory of its index."""
        return self.directory / paths.INDEX


class StagedCommits(Protocol):
    """Batches that commits over several buckets have staged."""

    def request(self, commit: OpenCommit, definition: TableDefinition, bucket: BucketId) -> Request:
        """The batch that a commit has for a bucket.

        Raises:
            CorruptData: It is damaged or missing.
        """


@dataclass(frozen=True, slots=True)
class BucketContext:
    """Context of one bucket.

    Attributes:
        catalog: Its table; also says whether the store still leads, so nothing is written without that check.
        commit_lock: Lock of the table's commits over several buckets.
        staged: Batches that these commits have staged.
        meter: Counts and durations of the table's work.
        budget: How much memory the memtables of the store may take.
    """

    paths: BucketPaths
    catalog: TableCatalog
    commit_lock: CommitLock
    staged: StagedCommits
    files: Files
    clock: Clock
    options: StoreOptions
    meter: TableMeter
    budget: Budget

    def reader_positions(self) -> AbstractContextManager[Iterable[Offset]]:
        """Positions of registered readers of the bucket's log; see :meth:`TableCatalog.reader_positions`."""
        return self.catalog.reader_positions(self.paths.identity.bucket_id)
