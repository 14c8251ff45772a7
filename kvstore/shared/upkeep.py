"""Upkeep of shared tables, from any machine and beside writers: snapshots, the removal of what is old, and checks."""

from __future__ import annotations

import datetime as dt

from kvstore.arguments import integer_within
from kvstore.clock import SystemClock
from kvstore.errors import InvalidRequest
from kvstore.replica.client import ObjectStore
from kvstore.replica.in_place.cache import directory_of_cache
from kvstore.shared.check import SharedReport, report_of
from kvstore.shared.location import url_of_tables
from kvstore.shared.snapshots import SnapshotSummary, take_snapshots
from kvstore.shared.table import SharedTable
from kvstore.shared.vacuum import VacuumSummary, remove_unneeded

OLDER_THAN = dt.timedelta(days=7)
OLDER_THAN_MIN = dt.timedelta(hours=1)
RETAIN_LAST = 100
_RETAIN_LAST_MAX = 1 << 31


def snapshot(url: str, table: str, *, again: bool = False) -> SnapshotSummary:
    """Take snapshots of a shared table, and commit them as an epoch.

    Reads of rows, and machines that have no copy of a bucket, begin with its newest snapshot instead of its first
    change. Each bucket with changes since its newest snapshot is rebuilt in the directory of caches of this machine,
    one after the other; that takes the space of the bucket.

    Changes that are older than the table's retention expire: they can't be read any more, and a later :func:`vacuum`
    removes them. The last write to a bucket stays. Such a bucket is rebuilt twice.

    Args:
        url, table: See :func:`kvstore.spark.create_table`.
        again: Take one of every bucket, and name no older ones, but for that of where changes begin; for when one is
            damaged.

    Raises:
        NoSuchTable: There is no shared table of that name.
        CorruptData, MissingVersion: An object of the table is damaged or gone; :func:`check` names all. What was
            uploaded is not committed.
        StoreFull, LogFailed: The disk of this machine is full or failed.
        Unavailable: The object store can't be reached, or others write all the time; try again.
    """
    return take_snapshots(_found(url, table), directory_of_cache(), SystemClock(), again=again)


def vacuum(
    url: str,
    table: str,
    *,
    older_than: dt.timedelta = OLDER_THAN,
    retain_last: int = RETAIN_LAST,
    dry_run: bool = False,
) -> VacuumSummary:
    """Remove what a shared table does not need; all rows stay, and all changes that have not expired.

    That are old manifests of epochs, snapshots and expired changes that only these name, and what was uploaded or
    staged more than a week ago and never committed; also for tables of this place that were never created.

    Args:
        url, table: See :func:`kvstore.spark.create_table`.
        older_than: Manifests that are younger stay; an hour or more, so that what reads or writes now can go on.
        retain_last: So many manifests stay, however old.
        dry_run: Remove nothing, and say what would be removed.

    Raises:
        InvalidRequest: ``older_than`` is less than an hour, or ``retain_last`` less than one. Nothing was removed.
        NoSuchTable: There is no shared table of that name.
        CorruptData, MissingVersion: A manifest is damaged or gone; :func:`check` names all. Nothing was removed.
        Unavailable: The object store can't be reached. Some may be removed; call it again.
    """
    if not isinstance(older_than, dt.timedelta) or older_than < OLDER_THAN_MIN:
        raise InvalidRequest("`older_than` is a timedelta of an hour or more.", older_than=older_than)
    return remove_unneeded(
        _found(url, table),
        older_than_ms=older_than // dt.timedelta(milliseconds=1),
        retain_last=integer_within("retain_last", retain_last, 1, _RETAIN_LAST_MAX),
        dry_run=dry_run,
    )


def check(url: str, table: str) -> SharedReport:
    """Verify a shared table: read all its manifests, and every range and snapshot that they name.

    Every object has its checksum and the content of its name, offsets have no gaps, and neither have epochs.

    Args:
        url, table: See :func:`kvstore.spark.create_table`.

    Returns:
        A report, true if nothing is wrong; else it names the objects that are missing or bad.

    Raises:
        NoSuchTable: There is no shared table of that name.
        CorruptData: The definition of the table is damaged.
        MissingVersion: It has no epochs.
        UnsupportedVersion: A newer version wrote an object.
        Unavailable: The object store can't be reached.
    """
    return report_of(_found(url, table))


def _found(url: str, table: str) -> SharedTable:
    url = url_of_tables(url)
    return SharedTable.find(url, ObjectStore(url), table)
