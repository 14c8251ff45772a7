"""kvstore: an embedded primary-key table for Python that writes its own changelog."""

from kvstore.check import BucketReport, CheckReport
from kvstore.checkpoint.controller import Checkpoint
from kvstore.checkpoint.health import Health
from kvstore.ingest.job import Job
from kvstore.ingest.runner import Run
from kvstore.ingest.store import Store, open_store as open  # noqa: A004 - the field's word, as in gzip and shelve
from kvstore.mend.repair import RepairReport, repair
from kvstore.options import StoreOptions
from kvstore.replica.follower import Follower, FollowReport, Promoted, Pulled
from kvstore.replica.replica import Replica, ReplicaReport
from kvstore.replica.restore import Restored
from kvstore.replica.shipper import Shipment
from kvstore.replica.shipping import Shipping
from kvstore.replica.store import follow, promote, restore
from kvstore.table.bucket import Bucket
from kvstore.table.consumers import Consumer
from kvstore.table.results import AppendResult, WriteResult
from kvstore.table.table import Table
from logformat.change import ChangeType
from logformat.changes import Changes
from logformat.jobs import JobOptions, JobStatistics, JobStatus
from merge_engines.aggregate import Aggregate
from merge_engines.functions.function import listagg
from merge_engines.versioned import Versioned
from writer import Refused, TableWriter

__all__ = [
    "Aggregate",
    "AppendResult",
    "Bucket",
    "BucketReport",
    "ChangeType",
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
    "Promoted",
    "Pulled",
    "Refused",
    "RepairReport",
    "Replica",
    "ReplicaReport",
    "Restored",
    "Run",
    "Shipment",
    "Shipping",
    "Store",
    "StoreOptions",
    "Table",
    "TableWriter",
    "Versioned",
    "WriteResult",
    "follow",
    "listagg",
    "open",
    "promote",
    "repair",
    "restore",
]
