"""What a write, or a snapshot, answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import UnsupportedOperation
from logformat.ids import BucketId, Offset


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What one bucket did with one batch.

    Attributes:
        first_offset, last_offset: The changes it made, both inclusive; a batch without effect takes one offset.
        duplicated: It had been applied before; nothing was appended, the offsets are those it got then.
        timestamp_ms: Its commit timestamp, milliseconds since the Unix epoch.
    """

    first_offset: Offset
    last_offset: Offset
    duplicated: bool
    timestamp_ms: int

    @property
    def log_end_offset(self) -> Offset:
        """The offset after the last."""
        return Offset(self.last_offset + 1)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a table did with a write.

    Attributes:
        by_bucket: One result for each bucket it touched. A bucket that needed several batches has the offsets of all.
    """

    by_bucket: dict[BucketId, AppendResult]

    @property
    def first_offset(self) -> Offset:
        """Of the one bucket touched."""
        return self._only.first_offset

    @property
    def last_offset(self) -> Offset:
        """Of the one bucket touched."""
        return self._only.last_offset

    @property
    def duplicated(self) -> bool:
        """Whether it had been applied before, in every bucket it touched; False if it touched none."""
        return bool(self.by_bucket) and all(each.duplicated for each in self.by_bucket.values())

    @property
    def timestamp_ms(self) -> int:
        """Of the one bucket touched."""
        return self._only.timestamp_ms

    @property
    def _only(self) -> AppendResult:
        if len(self.by_bucket) != 1:
            raise UnsupportedOperation(
                "Offsets belong to a bucket, and this write touched several or none; look into `by_bucket`.",
                buckets=sorted(self.by_bucket),
            )
        return next(iter(self.by_bucket.values()))


@dataclass(frozen=True, slots=True)
class BucketSnapshot:
    """A snapshot of one bucket.

    Attributes:
        offset: Changes before it are in the snapshot, others are not.
        path: Directory with ``rows.parquet``, ``writers.json`` and ``manifest.json`` (docs/format.md, Snapshot).
    """

    offset: Offset
    path: Path


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """Snapshots of all buckets of a table, each as of an offset of its own.

    Attributes:
        by_bucket: One for each bucket.
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
