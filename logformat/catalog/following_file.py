"""The file ``meta/FOLLOWING``: this copy of a store follows a replica (docs/format.md, FOLLOWING)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat import json_line
from logformat.urls import shown_text

FORMAT = 1


class FollowingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a copy follows.

    Attributes:
        store_id: Of the store.
        url: Of the replica.
        name: Of this copy: no other has it.
        leader: Set once it is being promoted: what its BeginEpoch will say.
    """

    format: int = FORMAT
    store_id: UUID
    url: str
    name: str
    leader: str | None = None

    def __repr__(self) -> str:
        return shown_text(super().__repr__())


def encode(following: FollowingFile) -> bytes:
    """The file."""
    return json_line.encode(following)


def decode(data: bytes) -> FollowingFile:
    """What :func:`encode` wrote.

    Raises:
        CorruptData: It is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    return json_line.decode(data, FollowingFile, FORMAT, "meta/FOLLOWING")
