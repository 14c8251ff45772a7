"""Results of writes and snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import UnsupportedOperation
from logformat.ids import BucketId, Offset


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Result of one batch in one bucket.

    Attributes:
        first_offset, last_offset: Offsets of its changes, both inclusive; a batch without effect takes one offset.
        duplicated: Whether it was applied before; then nothing was appended, and the offsets are those of the first
            time.
        timestamp_ms: Its commit timestamp, milliseconds since the Unix epoch.
    """

    first_offset: Offset
    last_offset: Offset
    duplicated: bool
    timestamp_ms: int

    @property
    def log_end_offset(self) -> Offset:
        """The offset after the last one."""
        return Offset(self.last_offset + 1)


def spanning(results: Sequence[AppendResult]) -> AppendResult:
    """The result of several batches of one bucket, in order."""
    first, last = results[0], results[-1]
    return AppendResult(first.first_offset, last.last_offset, False, last.timestamp_ms)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of a write to a table.

    Attributes:
        by_bucket: One result for each bucket written. For a bucket that needed several batches, the offsets span them
            all.
    """

    by_bucket: dict[BucketId, AppendResult]

    @property
    def first_offset(self) -> Offset:
        """First offset in the one bucket written."""
        return self._only.first_offset

    @property
    def last_offset(self) -> Offset:
        """Last offset in the one bucket written."""
        return self._only.last_offset

    @property
    def duplicated(self) -> bool:
        """Whether it had been applied before, in every bucket it touched; False if it touched none."""
        return bool(self.by_bucket) and all(each.duplicated for each in self.by_bucket.values())

    @property
    def timestamp_ms(self) -> int:
        """Commit timestamp in the one bucket written, milliseconds since the Unix epoch."""
        return self._only.timestamp_ms

    @property
    def _only(self) -> AppendResult:
        if len(self.by_bucket) != 1:
            raise UnsupportedOperation(
                "This write changed several buckets or none, and offsets belong to a bucket; see `by_bucket`.",
                buckets=sorted(self.by_bucket),
            )
        return next(iter(self.by_bucket.values()))


@dataclass(frozen=True, slots=True)
class BucketSnapshot:
    """A snapshot of one bucket.

    Attributes:
        offset: The snapshot has the changes before it, and no others.
        path: Directory with ``rows.parquet``, ``writers.json`` and ``manifest.json`` (docs/format.md, Snapshot).
    """

    offset: Offset
    path: Path


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """Snapshots of all buckets of a table, each as of its own offset.

    Attributes:
        by_bucket: One snapshot for each bucket.
    """

    by_bucket: dict[BucketId, BucketSnapshot]

    @property
    def offsets(self) -> dict[BucketId, Offset]:
        """The offset of each bucket."""
        return {bucket: taken.offset for bucket, taken in self.by_bucket.items()}

    @property
    def paths(self) -> list[Path]:
        """The directory of each bucket's snapshot, by bucket."""
        return [taken.path for _, taken in sorted(self.by_bucket.items())]
