"""Offsets of a stream as Spark keeps them in its checkpoint (docs/spark.md, "Offsets of a stream").

* Where a stream starts is decided in its first *end* offset, which Spark writes down before it runs a batch. Until that
  batch is done Spark asks for the initial offset again after a crash, so that only names the mode: if ``latest`` were
  decided there, what was written meanwhile would be lost without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from kvstore.errors import InvalidRequest
from kvstore.spark.options import Place
from kvstore.spark.read.place import TablePlace
from logformat.ids import Offset

START = "start"
Raw = dict[str, Any]
"""An offset as Spark takes and gives it: JSON."""


class Began(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a stream started.

    Attributes:
        offsets: For each bucket the first change that is read.
        rows_of: The rows as of these offsets come first; for each bucket when its last commit before was (ms).
    """

    offsets: dict[str, int]
    rows_of: dict[str, int] | None = None


class StreamOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far a stream is.

    Attributes:
        table: Whose offsets they are: store id and table id.
        offsets: For each bucket the change after the last that was read.
        began: Of the first offset only: where it started.
    """

    table: str
    offsets: dict[str, int]
    began: Began | None = None

    @property
    def by_bucket(self) -> dict[int, Offset]:
        """Offsets by bucket."""
        return {int(bucket): Offset(offset) for bucket, offset in self.offsets.items()}

    def raw(self) -> Raw:
        """As Spark takes it."""
        return msgspec.to_builtins(self)


def initial(start: Place) -> Raw:
    """The offset before any other: how to start, whatever there is to read then."""
    if isinstance(start, str):
        return {START: start}
    return {START: {str(bucket): offset for bucket, offset in start.items()} if isinstance(start, dict) else str(start)}


def decoded(raw: Raw, place: TablePlace, buckets: int) -> StreamOffset | None:
    """The offset that Spark gives back; None if it is the initial one.

    Raises:
        InvalidRequest: It is of another table, or another source.
    """
    if START in raw:
        return None
    try:
        found = msgspec.convert(raw, StreamOffset)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            "The checkpoint holds offsets of another source; start with a new checkpoint.", found=json.dumps(raw)
        ) from error
    if found.table != table_id(place):
        raise InvalidRequest(
            "The checkpoint is of another table, which maybe had this name; start with a new checkpoint.",
            table=place.name,
            id=table_id(place),
            found=found.table,
        )
    if set(found.offsets) != {str(bucket) for bucket in range(buckets)}:
        raise InvalidRequest(
            "The checkpoint does not know the buckets of the table; start with a new checkpoint.",
            buckets=buckets,
            found=list(found.offsets),
        )
    return found


def table_id(place: TablePlace) -> str:
    """Ids of store and table, which are never given out twice."""
    return f"{place.store_id}/{place.table_id}"


def by_name(offsets: Mapping[int, int]) -> dict[str, int]:
    """Offsets with buckets as JSON has them, always in the same order: Spark compares text."""
    return {str(bucket): offset for bucket, offset in sorted(offsets.items())}
