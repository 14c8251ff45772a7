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
from kvstore.read.scan import RowFilter, check_filter
from kvstore.read.time_travel import check_undoable
from logformat.log.change import PREIMAGE, ChangeType


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
        self._filter = RowFilter(filter, definition.schema)
        self.columns: Sequence[str] = self._filter.columns(definition.schema)

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
        places = self._filter.places(rows, len(kinds))
        if len(places) and places[-1] == len(kinds) - 1 and kinds[-1] == PREIMAGE:
            places = places[:-1]  # its second half is in the next range
        if not len(places):
            return Selected(places, kinds[:0], places)
        changed = kinds[places]
        is_preimage = changed == PREIMAGE
        second = (kinds[places - 1] == PREIMAGE) & (places > 0)
        adjacent = np.diff(places) == 1  # of the one after it
        leaves = is_preimage & ~np.append(adjacent, False)
        enters = second & ~np.append(False, adjacent)
        changed[enters] = ChangeType.INSERT
        changed[leaves] = ChangeType.DELETE
        # The second half of an update takes a row away.
        return Selected(places, changed, leaves.astype(np.int64))

    def rows(self, inserts: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The current rows, as inserts, for which the filter is true; a batch without any is left out."""
        for passing in self._filter.passing(inserts):
            if passing.num_rows:
                yield passing.select(columns)
