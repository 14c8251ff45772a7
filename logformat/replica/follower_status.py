"""The object ``follower/<name>`` of a replica: the status of a follower (docs/format.md, Replica)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat import json_line
from logformat.ids import Epoch, Txid

FORMAT = 1
PREFIX = "follower/"
STATUS_BYTES_MAX = 1 << 16


class FollowerStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Status of a copy.

    Attributes:
        name: Name of the copy.
        as_of_ms: Time of the report, by the copy's clock.
        txid, leader_epoch: The last edit it has, and that edit's epoch.
        free_bytes, obstacle: For leaders of version 0.1.0: they ask a copy without an obstacle for an image of the
            catalog.
    """

    format: int = FORMAT
    store_id: UUID
    name: str
    as_of_ms: int
    txid: Txid
    leader_epoch: Epoch
    free_bytes: int | None
    obstacle: str | None


def object_name(name: str) -> str:
    """Name of a copy's status object."""
    return f"{PREFIX}{name}"


def encode(status: FollowerStatus) -> bytes:
    """Encode the object."""
    return json_line.encode(status)


def decode(data: bytes) -> FollowerStatus:
    """Decode the object.

    Raises:
        CorruptData: The object is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    return json_line.decode(data, FollowerStatus, FORMAT, "follower/")
