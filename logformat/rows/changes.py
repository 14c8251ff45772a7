"""Upserts and deletes in the order in which they apply: the input of writers and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import InvalidRequest, SchemaMismatch
from logformat.rows import intake
from logformat.rows.python_values import column_of


@dataclass(frozen=True)
class Changes:
    """Operations on the rows of a table, in order.

    Attributes:
        rows: One row for each operation. The columns of a delete outside the key are ignored.
        is_delete: For each row, whether it deletes its key; may be given as a list or a numpy array.

    Raises:
        SchemaMismatch: An argument has the wrong type, the lengths differ, or ``is_delete`` has a null.
    """

    rows: pa.RecordBatch
    is_delete: pa.BooleanArray

    def __post_init__(self) -> None:
        if not isinstance(self.rows, pa.RecordBatch):
            raise SchemaMismatch("The rows of changes must be a pyarrow.RecordBatch.", given=type(self.rows).__name__)
        object.__setattr__(self, "is_delete", _booleans(self.is_delete))
        if len(self.is_delete) != self.rows.num_rows or self.is_delete.null_count:
            raise SchemaMismatch(
                "is_delete must have one value for each row, and no null.",
                rows=self.rows.num_rows,
                is_delete=len(self.is_delete),
            )

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def halves(self) -> list[Changes]:
        """The first half of these, and the others; only those that there are."""
        middle = -(-len(self) // 2)
        parts = [(0, middle), (middle, len(self) - middle)]
        return [Changes(self.rows.slice(*part), self.is_delete.slice(*part)) for part in parts if part[1]]

    @classmethod
    def of(
        cls, operations: Iterable[tuple[Literal["upsert", "delete"], Mapping[str, Any]]], schema: pa.Schema
    ) -> Changes:
        """Build changes from pairs of a word and a row; the row of a delete needs only the key.

        Columns that no upsert has are left out, which suits partial updates and columns that the table fills; a write
        of whole rows refuses it.

        Raises:
            SchemaMismatch: A row does not fit the schema, the upserts have different columns, or an operation is not
                such a pair.
            InvalidRequest: ``schema`` is not a schema.
        """
        if not isinstance(schema, pa.Schema):
            raise InvalidRequest(
                "The schema must be a pyarrow.Schema, such as Table.schema.", given=type(schema).__name__
            )
        if not isinstance(operations, Iterable):
            raise SchemaMismatch("Operations must be a list of pairs.", given=type(operations).__name__)
        listed = list(operations)
        for operation in listed:
            match operation:
                case ("upsert" | "delete", Mapping()):
                    pass
                case _:
                    raise SchemaMismatch(
                        "An operation must be a pair: `upsert` or `delete`, and a dict.", given=repr(operation)[:100]
                    )
        given = {name for word, row in listed if word == "upsert" for name in row}
        optional = pa.schema([field.with_nullable(True) for field in schema if not given or field.name in given])
        nothing = dict.fromkeys(optional.names)
        names = set(schema.names)
        rows = []
        for word, row in listed:
            if word == "delete" and row.keys() <= names:
                row = nothing | {name: value for name, value in row.items() if name in nothing}
            rows.append(row)
        return cls(
            intake.one_batch(rows, optional, fills=False),
            pa.array([word == "delete" for word, _ in listed], pa.bool_()),
        )

    @classmethod
    def upserts(cls, rows: pa.RecordBatch) -> Changes:
        """Changes that upsert every row."""
        return cls(rows, pa.array(np.zeros(rows.num_rows, bool)))

    @classmethod
    def deletes(cls, keys: pa.RecordBatch, schema: pa.Schema) -> Changes:
        """Changes that delete each key; the other columns of ``schema`` are null."""
        there = set(keys.schema.names)
        columns = [
            keys.column(field.name) if field.name in there else pa.nulls(keys.num_rows, field.type) for field in schema
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        return cls(rows, pa.array(np.ones(keys.num_rows, bool)))

    def then(self, later: Changes) -> Changes:
        """These changes, followed by others with the same columns."""
        return Changes(pa.concat_batches([self.rows, later.rows]), pa.concat_arrays([self.is_delete, later.is_delete]))

    def take(self, places: pa.Int64Array) -> Changes:
        """The changes at the given places, in that order."""
        return Changes(self.rows.take(places), self.is_delete.take(places))

    def conform(self, schema: pa.Schema, key: Sequence[str], *, fills: bool = True) -> Changes:
        """The same changes, with the rows ordered and typed as in ``schema``.

        Args:
            fills: See :func:`logformat.rows.intake.record_batches`.

        Raises:
            SchemaMismatch: A column is missing, unknown or of the wrong type; a key is null, or an upsert has a null in
                a column that takes none.
        """
        rows = intake.conform(self.rows, schema, not_null=key, fills=fills)
        for field, column in zip(schema, rows.columns, strict=True):
            if not field.nullable and column.null_count:
                nulls = int(pc.sum(pc.and_not(column.is_null(), self.is_delete)).as_py())
                if nulls:
                    raise SchemaMismatch("This column does not allow nulls.", column=field.name, nulls=nulls)
        return Changes(rows, self.is_delete)


def _booleans(given: Any) -> pa.BooleanArray:
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, (Sequence, np.ndarray)):
        given = column_of(list(given), pa.bool_())
    if not isinstance(given, pa.BooleanArray):
        raise SchemaMismatch(
            "is_delete must be a pyarrow.BooleanArray.", given=getattr(given, "type", None) or type(given).__name__
        )
    return given
