"""kvstore: an embedded primary-key table for Python that writes its own changelog."""

import kvstore.disk.platforms  # noqa: F401 - refuses what would fail later without saying why, such as Windows

# isort: split
from kvstore.backup.backup import Backup
from kvstore.checkpoint.controller import Checkpoint
from kvstore.checkpoint.health import Health
from kvstore.commit.consumers import Consumer, Lease
from kvstore.history.bucket_log import BucketLog, LoggedBatch, LogSegment, SegmentContent
from kvstore.history.bucket_status import BucketStatus
from kvstore.history.origin import Origin, Origins
from kvstore.history.undoing import Undo
from kvstore.ingest.job import Job
from kvstore.ingest.runner import Run
from kvstore.meta.browse import CatalogBrowser, StoredImage, browse_catalog
from kvstore.meta.writers import NamedWriter, OpenCommit
from kvstore.options import StoreOptions
from kvstore.patch.patch import Patch
from kvstore.read.bucket_rows import BucketRows
from kvstore.read.changelog_reader import ChangelogReader
from kvstore.read.conditions import parse_filter
from kvstore.read.key_texts import parse_key
from kvstore.repair.store import RepairReport, repair
from kvstore.replica.follow.follower import Follower, FollowReport, Promoted, Pulled
from kvstore.replica.objects import StreamObjects
from kvstore.replica.operations import follow, promote, restore
from kvstore.replica.read.restore import Restored
from kvstore.replica.replica import Replica, ReplicaReport
from kvstore.replica.ship.background import Shipping
from kvstore.replica.ship.shipper import Shipment
from kvstore.request.results import AppendResult, WriteResult
from kvstore.store.check import BucketReport, CheckReport
from kvstore.store.metrics import prometheus_text
from kvstore.store.opening import SharedTables, StoreInReplica, open_store as open  # noqa: A004 - the field's word, as in gzip and shelve
from kvstore.store.snapshot import StoreSnapshot
from kvstore.store.store import Store
from kvstore.subscription.subscription import Subscription
from kvstore.table.bucket import Bucket
from kvstore.table.read_table import ReadTable
from kvstore.table.table import Table
from kvstore.transaction.transaction import Transaction, TransactionResult
from logformat.catalog.jobs import JobOptions, JobStatistics, JobStatus
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes
from merge_engines.aggregate import Aggregate
from merge_engines.functions.function import listagg
from merge_engines.versioned import Versioned
from writer import Refused, TableWriter

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "AppendResult",
    "Backup",
    "Bucket",
    "BucketLog",
    "BucketReport",
    "BucketRows",
    "BucketStatus",
    "CatalogBrowser",
    "ChangeType",
    "ChangelogReader",
    "Changes",
    "CheckReport",
    "Checkpoint",
    "Consumer",
    "FollowReport",
    "Follower",
    "Health",
    "Job",
    "JobOptions",
    "JobStatistics",
    "JobStatus",
    "Lease",
    "LogSegment",
    "LoggedBatch",
    "NamedWriter",
    "OpenCommit",
    "Origin",
    "Origins",
    "Patch",
    "Promoted",
    "Pulled",
    "ReadTable",
    "Refused",
    "RepairReport",
    "Replica",
    "ReplicaReport",
    "Restored",
    "Run",
    "SegmentContent",
    "SharedTables",
    "Shipment",
    "Shipping",
    "Store",
    "StoreInReplica",
    "StoreOptions",
    "StoreSnapshot",
    "StoredImage",
    "StreamObjects",
    "Subscription",
    "Table",
    "TableWriter",
    "Transaction",
    "TransactionResult",
    "Undo",
    "Versioned",
    "WriteResult",
    "__version__",
    "browse_catalog",
    "follow",
    "listagg",
    "open",
    "parse_filter",
    "parse_key",
    "prometheus_text",
    "promote",
    "repair",
    "restore",
]
