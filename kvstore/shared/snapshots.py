"""Snapshots of the buckets of a shared table: a copy, and a read of rows, begin with the newest one.

* A snapshot is taken in a directory of its own, so no write of this machine waits for it. It is committed as an epoch.
* What was written before a snapshot can still be read, but for changes that are older than the table's retention: an
  epoch that has a snapshot of their end no longer names them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvstore.bucket.context import BucketPaths
from kvstore.bucket.snapshots import snapshot as local
from kvstore.clock import Clock
from kvstore.disk.files import Files, read_file, refusals
from kvstore.errors import Unavailable
from kvstore.shared.copy import open_copy
from kvstore.shared.table import SharedTable
from kvstore.shared.write import TRIES, check_age
from logformat import paths
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId
from logformat.log.snapshot_manifest import MANIFEST_BYTES_MAX
from logformat.replica.object_file import ObjectName
from logformat.replica.shared_table import SharedEpoch, SharedRange, SharedSnapshot

KEPT = 2
"""Number of snapshots of a bucket that an epoch names: the newest, and the one before in case that is damaged."""


@dataclass(frozen=True)
class SnapshotSummary:
    """The result of taking snapshots.

    Attributes:
        epoch: The epoch that has them; the newest one if there was nothing to do.
        buckets: Those that got a snapshot.
        bytes: Size of the snapshots.
        expired: For each bucket of which changes have expired, how many.
    """

    epoch: int
    buckets: list[int]
    bytes: int
    expired: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Taken:
    """A snapshot that was uploaded, and the range whose end it is of.

    Attributes:
        expires: Whether the changes before it expire.
    """

    bucket: BucketId
    after: SharedRange
    snapshot: SharedSnapshot
    expires: bool


def take_snapshots(table: SharedTable, cache: Path, clock: Clock, *, again: bool) -> SnapshotSummary:
    """Take a snapshot of each bucket that has changes since its newest one, and commit them; see ``snapshot``.

    Where changes are older than the retention, a snapshot of their end is taken, too, and they expire.
    """
    began, base = clock.monotonic(), table.newest()
    taken = []
    for bucket in map(BucketId, range(table.definition.buckets)):
        snapshots, expired = base.snapshots[bucket], _expired(table, base, bucket, clock)
        if expired:
            taken.append(_taken(table, _up_to(base, bucket, expired), bucket, cache, clock, expires=True))
        if base.ranges[bucket] and (again or not snapshots or snapshots[-1].offset < base.end(bucket)):
            taken.append(_taken(table, base, bucket, cache, clock))
    if not taken:
        return SnapshotSummary(base.epoch, [], 0)
    for _ in range(TRIES):
        # Others may have committed meanwhile. What is left of the ranges is of the same history; if a range is gone,
        # another process has let it expire, with a snapshot of its own.
        base = table.newest()
        kept = [each for each in taken if each.after in base.ranges[each.bucket]]
        starts = {each.bucket: each.snapshot.offset for each in kept if each.expires}
        check_age(began, clock)
        named = _named(base, kept, starts, alone=again)
        # The time of this machine is that of no write, and decides nothing.
        made = table.commit(base, {}, None, base.committed_ms + 1, named, starts)
        if made is not None:
            expired_changes = {int(bucket): start - base.start(bucket) for bucket, start in starts.items()}
            size = sum(each.snapshot.bytes for each in kept)
            return SnapshotSummary(made.epoch, sorted({int(each.bucket) for each in kept}), size, expired_changes)
    raise Unavailable("Others write the shared table all the time; try again.", table=table.definition.name)


def _expired(table: SharedTable, base: SharedEpoch, bucket: BucketId, clock: Clock) -> int:
    """Number of the first ranges of a bucket that expire: all their changes are older than the retention.

    The last range stays. The time of the last commit is taken for that of now if it is earlier: a clock that is ahead,
    here or where that was written, lets nothing expire early.
    """
    retention_ms, ranges = table.definition.options.retention_ms, base.ranges[bucket]
    if retention_ms is None or len(ranges) < 2:
        return 0
    oldest_ms = min(clock.now_ms(), base.committed_ms) - retention_ms
    first = table.at(base).first_at_or_after(bucket, oldest_ms, table.client)
    return min(bisect_right(ranges, first, key=lambda each: each.end), len(ranges) - 1)


def _up_to(base: SharedEpoch, bucket: BucketId, count: int) -> SharedEpoch:
    """The epoch with the first ranges of a bucket only."""
    ranges, snapshots = list(base.ranges), list(base.snapshots)
    ranges[bucket] = ranges[bucket][:count]
    snapshots[bucket] = [each for each in snapshots[bucket] if each.offset <= ranges[bucket][-1].end]
    return replace(base, ranges=ranges, snapshots=snapshots)


def _named(
    base: SharedEpoch, taken: Iterable[_Taken], starts: Mapping[BucketId, int], *, alone: bool
) -> dict[BucketId, list[SharedSnapshot]]:
    """For each bucket with a new snapshot, those that the epoch names: that of its start, and the newest.

    Args:
        starts: For each bucket of which changes expire, the offset of the first one that stays.
        alone: Whether the epoch names no older snapshots, but for that of the start.
    """
    new: dict[BucketId, dict[int, SharedSnapshot]] = {}
    for each in taken:
        new.setdefault(each.bucket, {})[each.snapshot.offset] = each.snapshot
    snapshots_kept = {}
    for bucket, snapshots in new.items():
        start = starts.get(bucket, base.start(bucket))
        old = {each.offset: each for each in base.snapshots[bucket] if not alone or each.offset == start}
        by_offset = {offset: each for offset, each in sorted((old | snapshots).items()) if offset >= start}
        newest = set(list(by_offset)[-KEPT:])
        snapshots_kept[bucket] = [each for offset, each in by_offset.items() if offset in newest or offset == start]
    return snapshots_kept


def _taken(
    table: SharedTable, base: SharedEpoch, bucket: BucketId, cache: Path, clock: Clock, *, expires: bool = False
) -> _Taken:
    """Take a snapshot of a bucket as of an epoch, and upload it."""
    files, stream, ranges = Files(), Stream(table.definition.id, bucket), base.ranges[bucket]
    with refusals(cache):
        cache.mkdir(0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="snapshot-", dir=cache, ignore_cleanup_errors=True) as directory:
        bucket_paths = BucketPaths.of(Path(directory), base.store_id, table.definition.id, bucket)
        copy = open_copy(table, base, bucket_paths, files, clock)
        assert copy is not None, "a new copy is of no later epoch"
        try:
            with refusals(bucket_paths.directory):
                snapshot = local.take(
                    *(
                        bucket_paths.directory,
                        bucket_paths.identity,
                        copy.path.memtable.view,
                        lambda: table.definition,
                        files,
                    ),
                    now_ms=clock.now_ms(),
                )
                parts = [
                    read_file(snapshot.directory / paths.SNAPSHOT_MANIFEST, bytes_max=MANIFEST_BYTES_MAX),
                    *(
                        read_file(snapshot.directory / name, bytes_max=snapshot.manifest.files[name].bytes)
                        for name in (paths.SNAPSHOT_WRITERS, paths.SNAPSHOT_ROWS)
                    ),
                ]
        finally:
            copy.close()

    def name(random: int) -> ObjectName:
        # Below all attempts of ranges: see SharedSnapshot.
        return SharedSnapshot(snapshot.offset, random % ranges[0].attempt, 0).name(stream)

    made, size = table.upload(name, parts)
    return _Taken(bucket, ranges[-1], SharedSnapshot(made.start, made.epoch, size), expires)
