"""kvstore: an embedded primary-key table for Python that writes its own changelog."""

from kvstore.check import BucketReport, CheckReport
from kvstore.checkpoint.controller import Checkpoint
from kvstore.checkpoint.health import Health
from kvstore.options import StoreOptions
from kvstore.store import Store, open_store as open  # noqa: A004 - the field's word, as in gzip and shelve
from kvstore.table.bucket import Bucket
from kvstore.table.consumers import Consumer
from kvstore.table.results import AppendResult, WriteResult
from kvstore.table.table import Table
from logformat.change import ChangeType
from logformat.changes import Changes
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
    "Health",
    "Refused",
    "Store",
    "StoreOptions",
    "Table",
    "TableWriter",
    "Versioned",
    "WriteResult",
    "listagg",
    "open",
]
