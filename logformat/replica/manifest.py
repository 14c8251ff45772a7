"""The object ``TOLD`` of a replica, its manifest: states what was shipped to the replica."""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat import json_line
from logformat.catalog.replicas import Shipped
from logformat.errors import CorruptData
from logformat.ids import Epoch

NAME = "TOLD"
FORMAT = 1
MANIFEST_BYTES_MAX = 64 << 20


class ReplicaManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest that a leader writes to a replica.

    Attributes:
        as_of_ms: The replica has everything that was published at this time.
        shipped: One entry for each stream, in order.
    """

    format: int = FORMAT
    store_id: UUID
    leader_epoch: Epoch
    as_of_ms: int
    shipped: list[Shipped]


def encode(manifest: ReplicaManifest) -> bytes:
    """Encode the object."""
    return json_line.encode(manifest)


def decode(data: bytes, store_id: UUID) -> ReplicaManifest:
    """Decode the object.

    Raises:
        CorruptData: The object is damaged, or belongs to another store.
        UnsupportedVersion: A newer version wrote it.
    """
    manifest = json_line.decode(data, ReplicaManifest, FORMAT, NAME)
    if manifest.store_id != store_id:
        raise CorruptData("The manifest of a replica belongs to another store.", object=NAME, of=manifest.store_id)
    return manifest
