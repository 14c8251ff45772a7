"""The merge engine of a table."""

from __future__ import annotations

from functools import lru_cache

from kvstore.meta.state import TableDefinition
from merge_engines.engine import MergeEngine
from merge_engines.last_row import LastRow
from merge_engines.spec import engine_of

OVERWRITE = LastRow()
"""The merge engine of a write that overwrites."""


@lru_cache(maxsize=256)
def engine_of_table(definition: TableDefinition) -> MergeEngine:
    """The merge engine of a table with a primary key; built once for each definition.

    Raises:
        UnsupportedVersion: A newer version wrote it.
    """
    return engine_of(definition.options.merge_engine)
