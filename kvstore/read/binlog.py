"""Binlog: a changelog with one row for each change, where an update holds the row before and the row after.

It is the changelog without preimages; each preimage becomes ``before`` of the change that follows it. Offsets and
change types are those of the changelog, so an update belongs to a range of offsets if its postimage does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import CHANGE_FIELDS
from kvstore.read.scan import scan_schema
from logformat.log.change import ChangeType

BEFORE, AFTER = "before", "after"


def binlog_schema(definition: TableDefinition, columns: Sequence[str] | None = None) -> pa.Schema:
    """Columns of a table's binlog: those of a change, then the row before and the row after.

    Args:
        columns: Columns of these rows, in this order; None for all.

    Raises:
        SchemaMismatch: ``columns`` has a name that the table does not have.
    """
    row = pa.struct([field.with_nullable(True) for field in scan_schema(definition, columns)])
    return pa.schema([*CHANGE_FIELDS, pa.field(BEFORE, row), pa.field(AFTER, row)])


def changelog_columns(schema: pa.Schema) -> list[str]:
    """Columns of the changelog that a binlog of this schema needs."""
    return [*CHANGE_FIELDS.names, *(field.name for field in schema.field(AFTER).type)]


def binlog_of(changes: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The binlog of a changelog that has both images of an update in one batch; a preimage alone is left out."""
    for batch in changes:
        rows = _paired(batch, schema)
        if rows.num_rows:
            yield rows


def _paired(changes: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    kinds = changes.column("_change_type")
    preimage = pc.equal(kinds, ChangeType.UPDATE_PREIMAGE.word).to_numpy(zero_copy_only=False)
    deleted = pc.equal(kinds, ChangeType.DELETE.word).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(~preimage)
    updates = np.append(False, preimage[:-1])[places]
    deletes = deleted[places]
    row = schema.field(AFTER).type
    rows = changes.select([field.name for field in row])
    about = changes.select(CHANGE_FIELDS.names).take(pa.array(places))
    images = (_images(rows, places - updates, updates | deletes, row), _images(rows, places, ~deletes, row))
    return pa.RecordBatch.from_arrays([*about.columns, *images], schema=schema)


def _images(rows: pa.RecordBatch, places: np.ndarray, there: np.ndarray, row: pa.StructType) -> pa.StructArray:
    """The rows at the given places, null where ``there`` is false."""
    taken = rows.take(pa.array(places, mask=~there))
    return pa.StructArray.from_arrays(taken.columns, fields=list(row), mask=pa.array(~there))
