"""Offsets of a stream in Spark's checkpoint (docs/spark.md, "Offsets of a stream").

* The first *end* offset fixes the start of a stream, because Spark saves it before it runs a batch. Until that batch
  ends, Spark asks for the initial offset again after a crash; so the initial offset only names the mode: if it resolved
  ``latest``, changes written meanwhile would be lost silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from kvstore.errors import InvalidRequest
from kvstore.spark.options import Place
from kvstore.spark.read.address import TableAddress
from logformat.ids import Epoch, Offset

START = "start"
Raw = dict[str, Any]
"""An offset in the JSON form that Spark passes."""


class Began(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start of a stream.

    Attributes:
        offsets: For each bucket, the first change that is read.
        rows_of: If given, the rows as of these offsets come first; for each bucket, the time of its last commit before
            the offset, in milliseconds since the Unix epoch.
    """

    offsets: dict[str, int]
    rows_of: dict[str, int] | None = None


class StreamOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Position of a stream.

    Attributes:
        table: Store id and table id of the offsets.
        offsets: For each bucket, the next offset to read.
        began: Start of the stream; only in the ends of its first batch and of other batches of the rows at its start.
        leader_epoch: Of a replica, the epoch of the leader that shipped these changes; None for a store.
        rows_from: If given, the rows at the start are incomplete: for each bucket that has some left, the first
            encoded key of them.
    """

    table: str
    offsets: dict[str, int]
    began: Began | None = None
    leader_epoch: Epoch | None = None
    rows_from: dict[str, bytes] | None = None

    @property
    def by_bucket(self) -> dict[int, Offset]:
        """Offsets by bucket."""
        return {int(bucket): Offset(offset) for bucket, offset in self.offsets.items()}

    def raw(self) -> Raw:
        """JSON form for Spark."""
        return msgspec.to_builtins(self)


def initial(start: Place) -> Raw:
    """The initial offset, which only names how the stream starts."""
    if isinstance(start, str):
        return {START: start}
    return {START: {str(bucket): offset for bucket, offset in start.items()} if isinstance(start, dict) else str(start)}


def decoded(raw: Raw, address: TableAddress, buckets: int) -> StreamOffset | None:
    """Decode an offset that Spark returns; None if it is the initial offset.

    Raises:
        InvalidRequest: It belongs to another table or another source.
    """
    if START in raw:
        return None
    try:
        decoded_offset = msgspec.convert(raw, StreamOffset)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            "The checkpoint has offsets of another source; start with a new checkpoint.", found=json.dumps(raw)
        ) from error
    if decoded_offset.table != table_id(address):
        raise InvalidRequest(
            "The checkpoint belongs to another table, which may have had this name; start with a new checkpoint.",
            table=address.name,
            id=table_id(address),
            found=decoded_offset.table,
        )
    if set(decoded_offset.offsets) != {str(bucket) for bucket in range(buckets)}:
        raise InvalidRequest(
            "The checkpoint has other buckets than the table; start with a new checkpoint.",
            buckets=buckets,
            found=list(decoded_offset.offsets),
        )
    return decoded_offset


def table_id(address: TableAddress) -> str:
    """Ids of store and table, which are never reused."""
    return f"{address.store_id}/{address.table_id}"


def by_name(offsets: Mapping[int, int]) -> dict[str, int]:
    """Offsets by buckets as JSON names, always in the same order, because Spark compares text."""
    return {str(bucket): offset for bucket, offset in sorted(offsets.items())}
