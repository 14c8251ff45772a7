"""The file ``meta/FOLLOWING``: this copy of a store follows a replica (docs/format.md, FOLLOWING)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat import json_line
from logformat.urls import shown_text

FORMAT = 1
FOLLOWING_BYTES_MAX = 1 << 16


class FollowingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The replica that a copy follows.

    Attributes:
        store_id: Id of the store.
        url: URL of the replica.
        name: Name of this copy, unique among the copies.
        leader: Set while the copy is being promoted: the ``leader`` of its BeginEpoch.
    """

    format: int = FORMAT
    store_id: UUID
    url: str
    name: str
    leader: str | None = None

    def __repr__(self) -> str:
        return shown_text(super().__repr__())


def encode(following: FollowingFile) -> bytes:
    """Encode the file."""
    return json_line.encode(following)


def decode(data: bytes) -> FollowingFile:
    """Decode the file.

    Raises:
        CorruptData: The file is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    return json_line.decode(data, FollowingFile, FORMAT, "meta/FOLLOWING")
