"""What a benchmark asks of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import pyarrow as pa

from benchmarks.rows import Shape

Durability = Literal["sync", "relaxed"]
"""``sync``: a batch is on the disk when it is acknowledged. ``relaxed``: soon; a power cut may take the last ones."""


class Store(Protocol):
    """One store with one table and a log of its changes, each with the row before and the row after.

    Args:
        path: A directory of its own, empty.
    """

    name: ClassVar[str]
    settings: ClassVar[dict[Durability, str]]

    def __init__(self, path: Path, shape: Shape, durability: Durability) -> None: ...

    def prepare(self, batch: pa.RecordBatch) -> Any:
        """A batch in the form the store takes; not timed."""

    def apply(self, prepared: Any) -> None:
        """Upsert a batch and log its changes, both as durable as the store was asked to make it."""

    def settle(self) -> None:
        """Do what was put off and does not happen by itself, so that the next turn is another's."""

    def rows(self) -> pa.Table:
        """The whole table, in order of keys."""

    def log_count(self) -> int:
        """Records in the log: one for an insert, two for an update."""

    def close(self) -> None:
        """Give everything up."""


def as_table(columns: list[Any], schema: pa.Schema) -> pa.Table:
    """Columns of Python values as a table."""
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
