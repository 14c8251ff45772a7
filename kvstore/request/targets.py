"""Target columns of a write, and the completion of its rows to all columns of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import column_names
from kvstore.errors import InvalidTargetColumns, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from logformat.rows.changes import Changes
from merge_engines.engine import MergeEngine


def targets_of(
    definition: TableDefinition, schema: pa.Schema, engine: MergeEngine, columns: Any
) -> frozenset[str] | None:
    """The columns a write names, checked; None if it is about whole rows.

    All columns of its schema may be named, but for the one the table fills. Then they stay the targets, for the table
    may have more columns when the write's turn comes; but if its engine takes whole rows only, it is about these.

    Args:
        schema: Schema of the write. If it is an older one, columns added later are not targets.
        engine: Merge engine of the write.
        columns: Names of columns, or None.

    Raises:
        InvalidTargetColumns: A column is unknown, a key column is missing, or another column is not nullable.
        UnsupportedOperation: The table's merge engine takes only whole rows.
    """
    if columns is None:
        return None
    names = column_names("columns", columns)
    key, automatic = definition.primary_key or (), definition.options.auto_increment
    known = set(schema.names)
    if unknown := [name for name in names if name not in known]:
        raise InvalidTargetColumns("The table has no such column.", unknown=unknown, columns=schema.names)
    if not set(key) <= set(names):
        raise InvalidTargetColumns(
            f"The target write columns {names} must contain the primary key columns {list(key)}; add them."
        )
    if automatic in names:
        raise InvalidTargetColumns("The table fills the auto-increment column; leave it out.", column=automatic)
    if known <= {*names, automatic}:
        return frozenset(names) if engine.takes_targets else None
    if not engine.takes_targets:
        raise UnsupportedOperation(
            "The table's merge engine takes only whole rows; leave `columns` out.", engine=type(engine).__name__
        )
    for field in definition.schema:
        if field.name not in key and field.name != automatic and not field.nullable:
            raise InvalidTargetColumns(
                "Partial Update requires all columns except primary key to be nullable, but column"
                f" {field.name} is NOT NULL."
            )
    return frozenset(names)


def schema_given(
    definition: TableDefinition, schema: pa.Schema, targets: frozenset[str] | None, *, overwrite: bool = False
) -> pa.Schema:
    """Columns that the rows of a write have: the targets, or all but the one that the table fills.

    Args:
        overwrite: Whether rows may have values in that column too; where it is null, the table fills it.
    """
    automatic = definition.options.auto_increment
    if targets is None and automatic is None:
        return schema
    if targets is None and overwrite:
        return pa.schema([field.with_nullable(field.nullable or field.name == automatic) for field in schema])
    return pa.schema(
        [field for field in schema if (field.name != automatic if targets is None else field.name in targets)]
    )


def selected(changes: Changes, schema: pa.Schema, wanted: pa.Schema, automatic: str | None) -> Changes:
    """Changes built by the caller, reduced to the columns wanted; extra columns of the table are allowed.

    Raises:
        InvalidTargetColumns: An upsert has a value in the column that the table fills.
    """
    names = changes.rows.schema.names
    if len(names) > len(set(names)) or set(names) <= set(wanted.names) or not set(names) <= set(schema.names):
        return changes
    if automatic in names and automatic not in wanted.names:
        is_given = pc.and_not(changes.rows.column(automatic).is_valid(), changes.is_delete)
        if pc.any(is_given).as_py():
            raise InvalidTargetColumns("The table fills the auto-increment column; leave it null.", column=automatic)
    return Changes(changes.rows.select([name for name in wanted.names if name in names]), changes.is_delete)


def filled(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows completed to every column of a schema: missing columns are null."""
    if rows.schema.equals(schema):
        return rows
    there = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns = [there[f.name] if f.name in there else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def renamed(changes: Changes, names: Mapping[str, str | None]) -> Changes:
    """Changes whose columns are called by other names; those that have none any more are left out.

    Args:
        names: See :meth:`TableDefinition.renamed_since`; a column that is not there keeps its name.
    """
    pairs = [(each, names.get(each, each)) for each in changes.rows.schema.names]
    kept = {old: new for old, new in pairs if new is not None}
    return Changes(changes.rows.select(list(kept)).rename_columns(list(kept.values())), changes.is_delete)
