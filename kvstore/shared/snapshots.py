"""Snapshots of the buckets of a shared table: a copy, and a read of rows, begin with the newest one.

* A snapshot is taken in a directory of its own, so no write of this machine waits for it. It is committed as an epoch.
* All changes stay: what was written before a snapshot can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kvstore.bucket import snapshot as local
from kvstore.bucket.context import BucketPlace
from kvstore.clock import Clock
from kvstore.errors import Unavailable
from kvstore.files import Files, read_file, refusals
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
    """

    epoch: int
    buckets: list[int]
    bytes: int


@dataclass(frozen=True)
class _Taken:
    """A snapshot that was uploaded, and the range whose end it is of."""

    bucket: BucketId
    after: SharedRange
    snapshot: SharedSnapshot


def take_snapshots(table: SharedTable, cache: Path, clock: Clock, *, again: bool) -> SnapshotSummary:
    """Take a snapshot of each bucket that has changes since its newest one, and commit them; see ``snapshot``."""
    began, base = clock.monotonic(), table.newest()
    taken = []
    for bucket in map(BucketId, range(table.definition.buckets)):
        snapshots = base.snapshots[bucket]
        if base.ranges[bucket] and (again or not snapshots or snapshots[-1].offset < base.end(bucket)):
            taken.append(_taken(table, base, bucket, cache, clock))
    if not taken:
        return SnapshotSummary(base.epoch, [], 0)
    for _ in range(TRIES):
        # Others may have committed meanwhile: ranges are only added, so the snapshots are still of this history.
        base = table.newest()
        kept = [each for each in taken if each.after in base.ranges[each.bucket]]
        check_age(began, clock)
        made = table.commit(base, {}, None, max(clock.now_ms(), base.committed_ms + 1), _named(base, kept, alone=again))
        if made is not None:
            return SnapshotSummary(
                made.epoch, [int(each.bucket) for each in kept], sum(each.snapshot.bytes for each in kept)
            )
    raise Unavailable("Others write the shared table all the time; try again.", table=table.definition.name)


def _named(base: SharedEpoch, taken: Iterable[_Taken], *, alone: bool) -> dict[BucketId, list[SharedSnapshot]]:
    """For each bucket with a new snapshot, those that the epoch names.

    Args:
        alone: Whether it names no older ones.
    """
    found = {}
    for each in taken:
        others = [] if alone else [old for old in base.snapshots[each.bucket] if old.offset != each.snapshot.offset]
        found[each.bucket] = sorted([*others, each.snapshot], key=lambda snapshot: snapshot.offset)[-KEPT:]
    return found


def _taken(table: SharedTable, base: SharedEpoch, bucket: BucketId, cache: Path, clock: Clock) -> _Taken:
    """Take a snapshot of a bucket as of an epoch, and upload it."""
    files, stream, ranges = Files(), Stream(table.definition.id, bucket), base.ranges[bucket]
    with refusals(cache):
        cache.mkdir(0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="snapshot-", dir=cache, ignore_cleanup_errors=True) as directory:
        place = BucketPlace.of(Path(directory), base.store_id, table.definition.id, bucket)
        path = open_copy(table, base, place, files, clock)
        assert path is not None, "a new copy is of no later epoch"
        try:
            with refusals(place.directory):
                found = local.take(
                    *(place.directory, place.identity, path.index.view, lambda: table.definition, files),
                    now_ms=clock.now_ms(),
                )
                parts = [
                    read_file(found.directory / paths.SNAPSHOT_MANIFEST, bytes_max=MANIFEST_BYTES_MAX),
                    *(
                        read_file(found.directory / name, bytes_max=found.manifest.files[name].bytes)
                        for name in (paths.SNAPSHOT_WRITERS, paths.SNAPSHOT_ROWS)
                    ),
                ]
        finally:
            path.close()

    def name(random: int) -> ObjectName:
        # Below all attempts of ranges: see SharedSnapshot.
        return SharedSnapshot(found.offset, random % ranges[0].attempt, 0).name(stream)

    made, size = table.upload(name, parts)
    return _Taken(bucket, ranges[-1], SharedSnapshot(made.start, made.epoch, size))
