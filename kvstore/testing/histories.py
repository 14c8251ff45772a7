"""Strategies for changes and for histories: tables, and batches of writers that repeat, skip and interleave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from kvstore.testing import strategies
from kvstore.testing.model import SEQUENCE_MAX, WINDOW, Operation
from logformat.rows.changes import Changes

_KEYS = [pa.int8(), pa.int64(), pa.uint64(), pa.bool_(), pa.string(), pa.binary(), pa.decimal128(5, 2)]
_VALUES = [
    *_KEYS,
    pa.binary(3),
    pa.list_(pa.int32()),
    pa.struct([pa.field("a", pa.int16()), pa.field("b", pa.string())]),
]
_NAMES = ["a", "b", "é", "c d", "x" * 255]
_KEYS_MAX = 4
"""Different keys of a history: few, so that batches meet."""


@dataclass(frozen=True)
class Batch:
    """One batch of a history.

    Attributes:
        changes: Upserts and deletes, in order.
        writer: The writer of the batch; -1 for none.
        sequence: The number that it is sent with: the writer's next one, an earlier one again, or one too large. -1
            without a writer.
    """

    changes: Changes
    writer: int
    sequence: int

    @property
    def operations(self) -> list[Operation]:
        """The changes as :meth:`Model.apply` takes them."""
        words = ["delete" if is_delete else "upsert" for is_delete in self.changes.is_delete.to_pylist()]
        return list(zip(words, self.changes.rows.to_pylist(), strict=True))


@dataclass(frozen=True)
class History:
    """A table and what is written to it.

    Attributes:
        schema: Columns of the table.
        primary_key: Names of the key's columns.
        batches: What is sent to the table's bucket, in order.
    """

    schema: pa.Schema
    primary_key: list[str]
    batches: list[Batch]


@st.composite
def changes(draw: st.DrawFn, schema: pa.Schema, *, rows_max: int = 5) -> Changes:
    """Upserts and deletes of rows of a schema; no column of a key may be nullable."""
    rows = draw(strategies.rows(schema, rows_max=rows_max))
    deletes = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return Changes(rows, pa.array(deletes, pa.bool_()))


@st.composite
def histories(
    draw: st.DrawFn,
    schema: pa.Schema | None = None,
    primary_key: Sequence[str] = (),
    *,
    writers: int = 2,
    batches_max: int = 10,
    rows_max: int = 5,
) -> History:
    """A table with one bucket, and batches of some writers: next ones, repeated ones and ones after a gap.

    A table and a :class:`Model` that both take all batches in order answer the same, refuse the same, and end with the
    same rows and changes.

    Args:
        schema: Columns of the table; by default a few of types whose values Python compares.
        primary_key: Names of the key's columns, if a schema is given.
        writers: Number of writers; they are 0, 1, … Batches without a writer are among theirs.
        batches_max: The largest number of batches.
        rows_max: The largest number of rows in a batch.
    """
    if schema is None:
        schema, primary_key = draw(_tables())
    keys = draw(_keys(pa.schema([schema.field(name) for name in primary_key])))
    sent: dict[int, list[Batch]] = {writer: [] for writer in range(writers)}
    batches: list[Batch] = []
    for _ in range(draw(st.integers(0, batches_max))):
        writer = draw(st.integers(-1, writers - 1))
        step = draw(st.sampled_from(["next", "next", "next", "again", "gap"])) if writer >= 0 else "next"
        before = sent.get(writer, [])
        if step == "again" and before:
            back = draw(st.integers(1, min(len(before), WINDOW + 1)))
            batches.append(before[-back])
            continue
        given = _of_keys(draw, draw(changes(schema, rows_max=rows_max)), keys)
        if writer < 0:
            batches.append(Batch(given, -1, -1))
            continue
        batch = Batch(
            given, writer, len(before) + (draw(st.sampled_from([1, 2, SEQUENCE_MAX // 2])) if step == "gap" else 0)
        )
        if step != "gap":
            before.append(batch)
        batches.append(batch)
    return History(schema, list(primary_key), batches)


@st.composite
def _tables(draw: st.DrawFn) -> tuple[pa.Schema, list[str]]:
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4, unique=True))
    primary_key = names[: draw(st.integers(1, min(2, len(names))))]
    fields = [
        pa.field(name, draw(st.sampled_from(_KEYS)), nullable=False)
        if name in primary_key
        else pa.field(name, draw(st.sampled_from(_VALUES)), nullable=draw(st.booleans()))
        for name in draw(st.permutations(names))
    ]
    return pa.schema(fields), primary_key


@st.composite
def _keys(draw: st.DrawFn, schema: pa.Schema) -> pa.RecordBatch:
    parts = [draw(strategies.columns(field.type, _KEYS_MAX, nullable=False)) for field in schema]
    return pa.RecordBatch.from_arrays(parts, schema=schema)


def _of_keys(draw: st.DrawFn, changes: Changes, keys: pa.RecordBatch) -> Changes:
    """The same changes of other keys."""
    size = len(changes)
    places = pa.array(draw(st.lists(st.integers(0, _KEYS_MAX - 1), min_size=size, max_size=size)), pa.int64())
    parts = dict(zip(changes.rows.schema.names, changes.rows.columns, strict=True))
    parts |= {name: keys.column(name).take(places) for name in keys.schema.names}
    return Changes(pa.RecordBatch.from_arrays(list(parts.values()), schema=changes.rows.schema), changes.is_delete)
