"""Records of the catalog about replicas: what was shipped to each, and what checks found (docs/format.md, Payloads)."""

from __future__ import annotations

from typing import Literal

import msgspec

from logformat.ids import BucketId, TableId
from logformat.urls import shown_text

FindingKind = Literal["BAD", "MISSING_VERSION"]
"""Kind of a finding: a bad object, or offsets that no object has."""


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """A part of the store that a replica copies in consecutive ranges: the catalog, or a bucket of a table.

    The edit with txid n is at offset n - 1 of the catalog, so an image of txid n is a snapshot of offset n.

    Attributes:
        table_id, bucket: -1 for the catalog.
    """

    table_id: TableId = TableId(-1)
    bucket: BucketId = BucketId(-1)


CATALOG = Stream()


class Shipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was shipped of a stream to a replica.

    Attributes:
        start, end: The replica has all offsets from ``start``, inclusive, to ``end``, exclusive.
        snapshots: Offsets of its snapshots, in order; each has everything before its offset.
    """

    stream: Stream = msgspec.field(name="track")
    start: int
    end: int
    snapshots: list[int]


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A defect of a replica.

    Attributes:
        object: Name of the bad object; None for missing offsets.
        start, end: Offsets from ``start``, inclusive, to ``end``, exclusive; for a snapshot both are its offset.
    """

    kind: FindingKind
    stream: Stream = msgspec.field(name="track")
    start: int
    end: int
    object: str | None = None


class ReplicaStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The state of a replica.

    Attributes:
        url: Location of the replica.
        shipped: What was shipped, one entry for each stream.
        findings: Defects found by the last check.
        checked_ms: Time of the last check; None if there was none.
        as_of_ms: Everything published at this time was shipped; None if nothing was.
    """

    url: str
    shipped: list[Shipped] = []
    findings: list[Finding] = []
    checked_ms: int | None = None
    as_of_ms: int | None = None

    def __repr__(self) -> str:
        return shown_text(super().__repr__())

    def of(self, stream: Stream) -> Shipped | None:
        """What was shipped of a stream."""
        return next((each for each in self.shipped if each.stream == stream), None)
