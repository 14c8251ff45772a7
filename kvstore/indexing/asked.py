"""What a read asks of a table, as its secondary indexes can be searched for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.index.index import View
from kvstore.indexing.conditions import Condition
from kvstore.indexing.entries import columns_of
from kvstore.indexing.find import FEW_ROWS, SHARE_MAX, Named, named_rows
from kvstore.meta.state import TableDefinition

AT_ONCE_ROWS = 1 << 15
"""Up to so many rows are read at once, from a short view: to prepare one for a scan may take longer."""


@dataclass(frozen=True)
class Asked:
    """What is asked, if an index may help.

    Attributes:
        definition: Columns are called as here.
        conditions: True for all rows that are sought.
        is_part: Whether a scan would read a part of the keys only, so that an index has to name few rows.
    """

    definition: TableDefinition
    conditions: Sequence[Condition]
    is_part: bool

    @classmethod
    def of(cls, definition: TableDefinition, conditions: Sequence[Condition], *, is_part: bool = False) -> Asked | None:
        """What these conditions ask for; None if no index can help."""
        names = {each.column for each in conditions}
        if not any(columns_of(definition, each)[0] in names for each in definition.indexes):
            return None
        return cls(definition, conditions, is_part or (definition.primary_key or ("",))[0] in names)

    def named(self, view: View, current: TableDefinition) -> Named | None:
        """Rows that an index names; None if a scan is to be preferred.

        Args:
            current: It has the schemas of all rows of the view, and names of columns as here.

        Raises:
            CorruptData: A row or an entry is damaged.
        """
        return named_rows(view, current, self.conditions, FEW_ROWS if self.is_part else None)

    def few_named(self, view: View, current: TableDefinition) -> Named | None:
        """Like :meth:`named`; None, too, if there are more rows than are read at once."""
        return named_rows(view, current, self.conditions, FEW_ROWS if self.is_part else AT_ONCE_ROWS)

    def many_named(self, view: View, current: TableDefinition) -> Named | None:
        """Those of :meth:`named` that :meth:`few_named` did not name because they are many."""
        if self.is_part or view.state().row_count // SHARE_MAX <= AT_ONCE_ROWS:
            return None
        return self.named(view, current)
