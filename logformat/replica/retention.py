"""The object ``RETENTION`` of a replica: how long it keeps what its tables no longer keep."""

from __future__ import annotations

import msgspec

from logformat import json_line

NAME = "RETENTION"
FORMAT = 1
RETENTION_BYTES_MAX = 1 << 12


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The retention of a replica.

    Attributes:
        retention_ms: The store can be restored to any time within so many milliseconds before now, also if its tables
            keep their changes for a shorter time.
    """

    format: int = FORMAT
    retention_ms: int


def encode(retention: Retention) -> bytes:
    """Encode the object."""
    return json_line.encode(retention)


def decode(data: bytes) -> Retention:
    """Decode the object.

    Raises:
        CorruptData: The object is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    return json_line.decode(data, Retention, FORMAT, NAME)
