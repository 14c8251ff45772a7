"""Changes as a filter sees them: what they do to the rows for which it is true.

A row that comes into the filter is an insert, one that leaves it a delete, and an update within it stays an update. So
the filtered changes, put together, are the filtered table, at every offset. Both images of an update are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import InvalidRequest, SchemaMismatch
from kvstore.indexing.filters import has_places
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import Selected
from kvstore.read.scan import check_filter, matching
from kvstore.read.time_travel import check_undoable
from logformat.log.change import ChangeType
from logformat.rows import intake
from logformat.rows.python_values import MISFITS

_PLACE = "_place"


def check_shapes(definition: TableDefinition, filter: pc.Expression) -> None:
    """Refuse a filter, or a table whose changes it can't shape.

    Raises:
        InvalidRequest: The filter is no condition on the table's columns, or has one by its place.
        UnsupportedOperation: The changelog is a WAL image.
    """
    check_filter(filter, definition.schema)
    if has_places(filter):  # changes have other columns at these places
        raise InvalidRequest("A filter of changes must name its columns, as in pc.field('n').", filter=filter)
    check_undoable(definition)


class Shape:
    """The changes that a filter sees, as a selection of all changes (:class:`kvstore.read.changelog.Selection`).

    Args:
        definition: The table, to whose columns the filter fits.
    """

    def __init__(self, definition: TableDefinition, filter: pc.Expression) -> None:
        self.filter = filter
        self.columns: Sequence[str] = _columns_of(filter, definition.schema)

    def check(self, now: TableDefinition, then: TableDefinition) -> None:
        """Verify that the columns of the filter are still there: of dropped ones no value is seen any more.

        Raises:
            SchemaMismatch: One was dropped since the reader began.
        """
        names = now.renamed_since(then.schema_id)
        if dropped := [name for name in self.columns if name in names and names[name] is None]:
            raise SchemaMismatch(
                "A column that the filter names was dropped; read with another filter.", table=now.name, dropped=dropped
            )

    def of(self, rows: pa.RecordBatch, kinds: np.ndarray) -> Selected:
        """What the filter sees; a first half of an update at the end, whose second half is not there, is left out."""
        count = len(kinds)
        seen = np.zeros(count, bool)
        placed = rows.append_column(_PLACE, pa.array(np.arange(count)))
        seen[matching(placed, self.filter).column(_PLACE).to_numpy()] = True
        first = kinds == ChangeType.UPDATE_PREIMAGE
        second = np.append(False, first[:-1])
        was_seen = np.append(False, seen[:-1])
        is_seen = np.append(seen[1:], False)
        leaves, enters = first & seen & ~is_seen, second & seen & ~was_seen
        if first[-1:].any():  # its second half is in the next range
            seen[-1] = leaves[-1] = False
        places = np.flatnonzero(seen)
        changed = kinds[places]
        changed[enters[places]] = ChangeType.INSERT
        changed[leaves[places]] = ChangeType.DELETE
        # The second half of an update takes a row away.
        return Selected(places, changed, leaves[places].astype(np.int64))

    def rows(self, inserts: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The current rows, as inserts, for which the filter is true; a batch without any is left out."""
        for batch in inserts:
            if (passing := matching(batch, self.filter)).num_rows:
                yield passing.select(columns)


def _columns_of(filter: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns that a filter uses: those without which it can't be applied."""
    used = []
    for field in schema:
        try:
            intake.empty(schema.remove(schema.get_field_index(field.name))).filter(filter)
        except MISFITS:
            used.append(field.name)
    return used
