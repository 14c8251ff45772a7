"""The object ``follower/<name>`` of a replica: the status of a follower (docs/format.md, Replica)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat import json_line
from logformat.ids import Epoch, Txid

FORMAT = 1
PREFIX = "follower/"
STATUS_BYTES_MAX = 1 << 16
MESSAGE_BYTES_MAX = 1 << 20
"""Size limit of a task, and of the answer to it."""


class FollowerStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Status of a copy.

    Attributes:
        name: Name of the copy.
        as_of_ms: Time of the report, by the copy's clock.
        txid, leader_epoch: The last edit it has, and that edit's epoch.
        free_bytes: Memory that a process may use there; None if unknown.
        obstacle: Why it can't write an image of the catalog; None if it can.
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


def task_name(name: str) -> str:
    """Name of the object that holds a copy's task."""
    return f"task/{name}"


def answer_name(name: str) -> str:
    """Name of the object that holds a copy's answer to its task."""
    return f"answer/{name}"


def image_name(name: str) -> str:
    """Name of the object that holds the image that a copy made."""
    return f"image/{name}"


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
