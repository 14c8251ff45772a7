"""Names of all files and directories in a store. Paths are built from ids, never from names of tables."""

from __future__ import annotations

import re
from pathlib import Path

from logformat.errors import CorruptImage
from logformat.ids import BucketId, JobId, Offset, TableId, Txid

STORE_FILE = "STORE"
UNFINISHED_BACKUP = "STORE.backup"
"""Name of ``STORE`` in a backup that is being made; a directory with it is no store yet."""
BACKUP_LEADER = "STORE.leader"
"""In a backup that is being made: the leader of the store whose files it has, as text."""
JOURNAL = Path("meta/journal")
UNFINISHED_JOURNAL = Path("meta/journal.tmp")
EDIT_LOCK = Path("meta/journal/LOCK")
CREATION_LOCK = Path("meta/LOCK")
SHIPPING = Path("meta/SHIPPING")
FOLLOWING = Path("meta/FOLLOWING")
TAKING = Path("meta/TAKING")
"""There while a copy takes a round with commits over several buckets, or died within one."""
IMAGES = Path("meta/image")
DOWNLOADS = "downloads"
"""Objects of a replica that a copy has fetched and not yet taken, in a directory for each epoch of a leader."""
UNFINISHED_IMAGE = "image.ckpt"
"""An image being written; a process that holds the lock of the images may remove it."""
TABLES = "tables"
LOCK_FILE = "LOCK"
PUBLISHED_FILE = "PUBLISHED"
COMMIT_FILE = "COMMIT"
WANTED_FILE = "WANTED"
WRITING_FILE = "WRITING"
TABLE_FILE = "TABLE"
DROPPED_FILE = "DROPPED"
STAGING = "staging"
SENDERS = "senders"
"""Directory of sockets and files of processes that send their writes to the owner of a bucket."""
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
"""Suffix of an unfinished file or directory; a process that holds the lock may remove it."""

_LOG_FILE = re.compile(r"([0-9]{20})\.log")
_SPARSE_INDEX_FILE = re.compile(r"([0-9]{20})\.index")
_WRITERS_FILE = re.compile(r"([0-9]{20})\.writers")
_SNAPSHOT = re.compile(r"([0-9]{20})")
_IMAGE = re.compile(r"image\.([0-9]{20})")
_REPAIR = re.compile(r"repair\.([0-9]{20})")
_STAGED = re.compile(r"(([0-9]+)-[0-9a-f]{32})\.batches")


def image_file(images: Path, txid: Txid) -> Path:
    """File of the catalog's image as of an edit."""
    return images / f"image.{txid:020d}"


def image_txid(name: str) -> Txid | None:
    """The txid in the name of an image; None for any other name."""
    match = _IMAGE.fullmatch(name)
    return Txid(int(match[1])) if match else None


def lost_directory(store: Path, txid: Txid) -> Path:
    """Quarantine directory of a recovery of the catalog; ``txid`` is the number of the recovery's own edit."""
    return store / LOST / f"{txid:020d}"


def repair_directory(store: Path, number: int) -> Path:
    """Quarantine directory of a repair, by its number."""
    return store / LOST / f"repair.{number:020d}"


def repair_number(name: str) -> int | None:
    """The number in the name of such a directory; None for any other name."""
    match = _REPAIR.fullmatch(name)
    return int(match[1]) if match else None


def bucket_directory(store: Path, table: TableId, bucket: BucketId) -> Path:
    """Directory of a bucket of a table."""
    return store / f"{TABLES}/{table}/{bucket}"


def store_of(bucket: Path) -> Path:
    """The store of the directory of a bucket."""
    return bucket.parents[2]


def segment_file(log: Path, base: Offset) -> Path:
    """File of the segment whose first batch has this offset."""
    return log / f"{base:020d}.log"


def sparse_index_file(log: Path, base: Offset) -> Path:
    """File of the sparse index of a segment."""
    return log / f"{base:020d}.index"


def writers_file(log: Path, base: Offset) -> Path:
    """File of the writers known when the segment began."""
    return log / f"{base:020d}.writers"


def snapshot_directory(bucket: Path, offset: Offset) -> Path:
    """Directory of a bucket's snapshot as of an offset."""
    return bucket / SNAPSHOTS / f"{offset:020d}"


def table_file(store: Path, table: TableId) -> Path:
    """File with the definition of a table."""
    return store / TABLES / str(table) / TABLE_FILE


def dropped_file(store: Path, table: TableId) -> Path:
    """That file, once the table is being dropped."""
    return store / TABLES / str(table) / DROPPED_FILE


def commit_lock(store: Path, table: TableId) -> Path:
    """Lock file of a commit to several buckets of a table."""
    return store / TABLES / str(table) / COMMIT_FILE


def wanted_file(store: Path, table: TableId) -> Path:
    """Marker file that exists while a commit to a table waits for buckets that other processes hold."""
    return store / TABLES / str(table) / WANTED_FILE


def writing_file(store: Path, table: TableId) -> Path:
    """Lock file that writers of single buckets of a table share."""
    return store / TABLES / str(table) / WRITING_FILE


def staged_file(store: Path, commit_id: str) -> Path:
    """File of a commit's batches for each bucket, until every bucket has its batch.

    Raises:
        CorruptImage: The id does not have the form of a commit id. The catalog may be a replica's, and such an id must
            not become a path.
    """
    name = f"{commit_id}.batches"
    if not _STAGED.fullmatch(name):
        raise CorruptImage("The catalog holds an invalid commit id; run `kvstore check`.", commit_id=ascii(commit_id))
    return store / STAGING / name


def staged_commit(name: str, table: TableId) -> str | None:
    """The commit id in the name of a staged file of a table; None for any other name.

    Commits have ids of the form ``<table id>-<32 hexadecimal digits>``.
    """
    match = _STAGED.fullmatch(name)
    return match[1] if match and int(match[2]) == table else None


def task_file(store: Path, job: str, partition: int, attempt: int) -> Path:
    """File of the rows of one task of a distributed write, until its commit."""
    return store / STAGING / f"{job}-{partition}-{attempt}.rows"


def is_task_file(name: str) -> bool:
    """Whether a file in ``staging/`` holds the rows of a task."""
    return name.endswith(".rows")


def job_directory(store: Path, job: JobId) -> Path:
    """Directory of an ingestion job's files outside the catalog."""
    return store / JOBS / str(job)


def rejected_file(job: Path, task: int) -> Path:
    """File of the rows that a task of a job left out."""
    return job / REJECTED / f"{task}.jsonl"


def segment_base(name: str) -> Offset | None:
    """Base offset in the name of a segment file; None for any other name."""
    return _offset_in(_LOG_FILE, name)


def sparse_index_base(name: str) -> Offset | None:
    """Base offset in the name of a sparse index; None for any other name."""
    return _offset_in(_SPARSE_INDEX_FILE, name)


def writers_base(name: str) -> Offset | None:
    """Offset in the name of a :func:`writers_file`; None for any other name."""
    return _offset_in(_WRITERS_FILE, name)


def snapshot_offset(name: str) -> Offset | None:
    """Offset in the name of a snapshot; None for any other name."""
    return _offset_in(_SNAPSHOT, name)


def _offset_in(pattern: re.Pattern[str], name: str) -> Offset | None:
    match = pattern.fullmatch(name)
    return Offset(int(match[1])) if match else None
