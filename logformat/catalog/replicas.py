"""What the catalog knows of replicas: what each was told, and what was found wrong (docs/format.md, Payloads)."""

from __future__ import annotations

from typing import Literal

import msgspec

from logformat.ids import BucketId, TableId
from logformat.urls import shown_text

FindingKind = Literal["BAD", "MISSING_VERSION"]
"""An object that is not what it should be; or offsets that no object has."""


class Track(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """What a replica is a copy of: the catalog, or a bucket of a table. Both have ranges that follow each other.

    An edit with txid n is at offset n - 1 of the catalog, so that an image of txid n is a snapshot of offset n.

    Attributes:
        table_id, bucket: -1 for the catalog.
    """

    table_id: TableId = TableId(-1)
    bucket: BucketId = BucketId(-1)


CATALOG = Track()


class Shipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a replica was told of a track, and should have.

    Attributes:
        start, end: All offsets from ``start`` on, before ``end``.
        snapshots: And these, in order: each has all that lies before its offset.
    """

    track: Track
    start: int
    end: int
    snapshots: list[int]


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is wrong with a replica.

    Attributes:
        object: Name of the object that is bad; None for offsets that are missing.
        start, end: Offsets from ``start`` on, before ``end``; of a snapshot both are its offset.
    """

    kind: FindingKind
    track: Track
    start: int
    end: int
    object: str | None = None


class ReplicaStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A replica.

    Attributes:
        url: Where it is.
        shipped: What it was told, one for each track.
        findings: What was wrong when it was checked last.
        checked_ms: When that was; None if it never was.
        as_of_ms: What was published then, it was told; None if it never was.
    """

    url: str
    shipped: list[Shipped] = []
    findings: list[Finding] = []
    checked_ms: int | None = None
    as_of_ms: int | None = None

    def __repr__(self) -> str:
        return shown_text(super().__repr__())

    def of(self, track: Track) -> Shipped | None:
        """What it was told of a track."""
        return next((each for each in self.shipped if each.track == track), None)
