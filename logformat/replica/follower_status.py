"""The object ``follower/<name>`` of a replica: how somebody is who follows it (docs/format.md, Replica)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat import json_line
from logformat.ids import Epoch, Txid

FORMAT = 1
PREFIX = "follower/"


class FollowerStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a copy is.

    Attributes:
        name: Of the copy.
        as_of_ms: When it said so, by its own clock.
        txid, leader_epoch: The last edit it has.
        free_bytes: Memory a process may have there; None if nobody knows.
        obstacle: Why it can make no image of the catalog; None if it can.
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
    """Where a copy says how it is."""
    return f"{PREFIX}{name}"


def task_name(name: str) -> str:
    """Where a copy finds what it is asked to do."""
    return f"task/{name}"


def answer_name(name: str) -> str:
    """Where it answers."""
    return f"answer/{name}"


def image_name(name: str) -> str:
    """Where it puts the image it was asked for."""
    return f"image/{name}"


def encode(status: FollowerStatus) -> bytes:
    """The object."""
    return json_line.encode(status)


def decode(data: bytes) -> FollowerStatus:
    """What :func:`encode` wrote.

    Raises:
        CorruptData: It is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    return json_line.decode(data, FollowerStatus, FORMAT, "follower/")
