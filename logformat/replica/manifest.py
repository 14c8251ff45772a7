"""The object ``TOLD`` of a replica: what it was told, so that who has only the replica knows up to where it goes."""

from __future__ import annotations

from uuid import UUID

import msgspec

from logformat import json_line
from logformat.catalog.replicas import Shipped
from logformat.errors import CorruptData
from logformat.ids import Epoch

NAME = "TOLD"
FORMAT = 1


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a leader says that a replica has.

    Attributes:
        as_of_ms: Everything that was published at that time is there.
        shipped: One for each track, in order.
    """

    format: int = FORMAT
    store_id: UUID
    leader_epoch: Epoch
    as_of_ms: int
    shipped: list[Shipped]


def encode(told: Told) -> bytes:
    """The object."""
    return json_line.encode(told)


def decode(data: bytes, store_id: UUID) -> Told:
    """What :func:`encode` wrote.

    Raises:
        CorruptData: It is damaged, or of another store.
        UnsupportedVersion: A newer version wrote it.
    """
    told = json_line.decode(data, Told, FORMAT, NAME)
    if told.store_id != store_id:
        raise CorruptData("What a replica was told is of another store.", object=NAME, of=told.store_id)
    return told
