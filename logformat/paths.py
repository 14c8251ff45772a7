"""Names of everything inside a store. Names of tables never become paths; ids do."""

from __future__ import annotations

import re
from pathlib import Path

from logformat.errors import CorruptImage
from logformat.ids import BucketId, JobId, Offset, TableId, Txid

STORE_FILE = "STORE"
JOURNAL = Path("meta/journal")
UNFINISHED_JOURNAL = Path("meta/journal.tmp")
SHIPPING = Path("meta/SHIPPING")
FOLLOWING = Path("meta/FOLLOWING")
IMAGES = Path("meta/image")
UNFINISHED_IMAGE = "image.ckpt"
"""An image being written; whoever holds the lock of the images may remove it."""
TABLES = "tables"
LOCK_FILE = "LOCK"
COMMIT_FILE = "COMMIT"
WANTED_FILE = "WANTED"
WRITING_FILE = "WRITING"
STAGING = "staging"
JOBS = "jobs"
TAKEN_FILE = "taken.jsonl"
REJECTED = "rejected"
LOST = "lost"
LOG = "log"
INDEX = "index"
REBUILT_INDEX = "index.rebuilt"
SNAPSHOTS = "snapshots"
SNAPSHOT_ROWS = "rows.parquet"
SNAPSHOT_WRITERS = "writers.json"
SNAPSHOT_MANIFEST = "manifest.json"
TEMPORARY = ".tmp"
"""Suffix of a file or directory that is not finished; whoever holds the lock may remove it."""

_LOG_FILE = re.compile(r"([0-9]{20})\.log")
_SPARSE_INDEX_FILE = re.compile(r"([0-9]{20})\.index")
_WRITERS_FILE = re.compile(r"([0-9]{20})\.writers")
_SNAPSHOT = re.compile(r"([0-9]{20})")
_IMAGE = re.compile(r"image\.([0-9]{20})")
_REPAIR = re.compile(r"repair\.([0-9]{20})")
_STAGED = re.compile(r"(([0-9]+)-[0-9a-f]{32})\.batches")


def image_file(images: Path, txid: Txid) -> Path:
    """Image of the catalog as of an edit."""
    return images / f"image.{txid:020d}"


def image_txid(name: str) -> Txid | None:
    """The edit in the name of an image; None for any other name."""
    match = _IMAGE.fullmatch(name)
    return Txid(int(match[1])) if match else None


def lost_directory(store: Path, txid: Txid) -> Path:
    """What a recovery of the catalog, whose own edit has this number, put aside."""
    return store / LOST / f"{txid:020d}"


def repair_directory(store: Path, number: int) -> Path:
    """What a repair put aside, by its number."""
    return store / LOST / f"repair.{number:020d}"


def repair_number(name: str) -> int | None:
    """The number in such a name; None for any other name."""
    match = _REPAIR.fullmatch(name)
    return int(match[1]) if match else None


def bucket_directory(store: Path, table: TableId, bucket: BucketId) -> Path:
    """Where a bucket of a table lives."""
    return store / TABLES / str(table) / str(bucket)


def segment_file(log: Path, base: Offset) -> Path:
    """Segment whose first batch has this offset."""
    return log / f"{base:020d}.log"


def sparse_index_file(log: Path, base: Offset) -> Path:
    """Sparse index of a segment."""
    return log / f"{base:020d}.index"


def writers_file(log: Path, base: Offset) -> Path:
    """What was known of writers when the segment was begun."""
    return log / f"{base:020d}.writers"


def snapshot_directory(bucket: Path, offset: Offset) -> Path:
    """Snapshot of a bucket as of an offset."""
    return bucket / SNAPSHOTS / f"{offset:020d}"


def commit_lock(store: Path, table: TableId) -> Path:
    """Locked by who commits to several buckets of a table."""
    return store / TABLES / str(table) / COMMIT_FILE


def wanted_file(store: Path, table: TableId) -> Path:
    """There while who commits to a table waits for the buckets of others."""
    return store / TABLES / str(table) / WANTED_FILE


def writing_file(store: Path, table: TableId) -> Path:
    """Locked, together, by those who write buckets of a table by themselves."""
    return store / TABLES / str(table) / WRITING_FILE


def staged_file(store: Path, commit_id: str) -> Path:
    """What a commit has for each bucket, until all have it.

    Raises:
        CorruptImage: Commits have no such ids; the catalog may be a replica's, and such a one must not become a path.
    """
    name = f"{commit_id}.batches"
    if not _STAGED.fullmatch(name):
        raise CorruptImage("The catalog holds a commit whose id is none.", commit_id=ascii(commit_id))
    return store / STAGING / name


def staged_commit(name: str, table: TableId) -> str | None:
    """Commit of a table in the name of a staged file; None for any other name.

    Commits have ids of the form ``<table id>-<32 hexadecimal digits>``.
    """
    match = _STAGED.fullmatch(name)
    return match[1] if match and int(match[2]) == table else None


def task_file(store: Path, job: str, partition: int, attempt: int) -> Path:
    """Rows of one task of a distributed write, until its commit."""
    return store / STAGING / f"{job}-{partition}-{attempt}.rows"


def is_task_file(name: str) -> bool:
    """Whether a file in ``staging/`` holds rows of a task."""
    return name.endswith(".rows")


def job_directory(store: Path, job: JobId) -> Path:
    """Where an ingestion job keeps what is not in the catalog."""
    return store / JOBS / str(job)


def rejected_file(job: Path, task: int) -> Path:
    """Which rows a task of a job left out."""
    return job / REJECTED / f"{task}.jsonl"


def segment_base(name: str) -> Offset | None:
    """Base offset in the name of a segment file; None for any other name."""
    return _offset_in(_LOG_FILE, name)


def sparse_index_base(name: str) -> Offset | None:
    """Base offset in the name of a sparse index; None for any other name."""
    return _offset_in(_SPARSE_INDEX_FILE, name)


def writers_base(name: str) -> Offset | None:
    """Offset in the name of a file of :func:`writers_file`; None for any other name."""
    return _offset_in(_WRITERS_FILE, name)


def snapshot_offset(name: str) -> Offset | None:
    """Offset in the name of a snapshot; None for any other name."""
    return _offset_in(_SNAPSHOT, name)


def _offset_in(pattern: re.Pattern[str], name: str) -> Offset | None:
    match = pattern.fullmatch(name)
    return Offset(int(match[1])) if match else None
