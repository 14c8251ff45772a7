"""What a patch holds, and its text for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.history.difference import difference, value_text
from logformat.rows.json_form import to_json

VERSION = 1
LINES_MAX = 10_000
"""Largest number of rows that the text of a patch shows."""

STORE, UPDATE, DELETE, STAY = "store", "update", "delete", "stay"
"""What becomes of a row: it is new, changes, goes, or stays as it is because of a change after the undone one."""

_SIGNS = {STORE: "+", UPDATE: "~", DELETE: "-", STAY: "="}


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Facts about a patch.

    Attributes:
        id: Unique; the name of the patch's commit is made of it.
        store_id, table_id: The table that it is for.
        table: Name of the table when the patch was made.
        schema_id: Schema that the rows follow.
        key: Columns of the key.
        offsets: For each bucket, the offset up to which the patch knows the table.
        as_of_ms: Timestamp of the last commit when the patch was made, milliseconds since the Unix epoch; 0 if none.
        undone: What it undoes, if it undoes something; see :class:`kvstore.history.undoing.Undo`.
    """

    id: str
    store_id: UUID
    table_id: int
    table: str
    schema_id: int
    key: list[str]
    offsets: dict[int, int]
    as_of_ms: int
    undone: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Contents:
    """A patch.

    Attributes:
        rows: One row for each key: ``what`` becomes of it, the row ``before`` and ``after``.
    """

    header: Header
    rows: pa.RecordBatch

    def count(self, what: str) -> int:
        """Number of rows of which this becomes."""
        return int(pc.sum(pc.equal(self.rows.column("what"), what)).as_py() or 0)

    def text(self) -> str:
        """Everything about the patch in lines for people."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        header, counts = self.header, {what: self.count(what) for what in _SIGNS}
        time = pa.array([header.as_of_ms], pa.timestamp("ms", "UTC"))
        yield f"table: {value_text(header.table)}"
        yield f"made at: offsets {value_text(header.offsets)}, last change {to_json(time)[0]}"
        if header.undone:
            yield "undoes: " + ", ".join(f"{name} {value_text(value)}" for name, value in header.undone.items())
        yield f"rows: {counts[STORE]:,} to store, {counts[UPDATE]:,} to update, {counts[DELETE]:,} to delete"
        if counts[STAY]:
            yield f"stay as they are, because of a later change: {counts[STAY]:,}"
        yield ""
        shown = self.rows.slice(0, LINES_MAX)
        for what, before, after in zip(*(to_json(column) for column in shown.columns), strict=True):
            row = before if after is None else after
            key = ", ".join(f"{name}={value_text(row[name])}" for name in header.key)
            about = "changed later by others" if what == STAY else difference(before, after, header.key)
            yield f"{_SIGNS[what]} {key}  {about}".rstrip()
        if self.rows.num_rows > LINES_MAX:
            yield f"… and {self.rows.num_rows - LINES_MAX:,} more"
