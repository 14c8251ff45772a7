"""The engine that keeps the newest version: an upsert with a lower version than the row's does nothing.

Null is the lowest version. Among equal versions, the later row replaces the earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from logformat.errors import InvalidRequest
from merge_engines.columns import numbers_of, validity_of
from merge_engines.engine import DeleteBehavior, Merged, Operations
from merge_engines.history import history_of
from merge_engines.refusals import refuse_deletes, refuse_targets
from merge_engines.runs import Runs, accumulate, choose


@dataclass(frozen=True, slots=True)
class Versioned:
    """The row with the highest version wins.

    Args:
        column: The version column: an integer or a timestamp.
    """

    column: str
    delete_behaviors: ClassVar[tuple[DeleteBehavior, ...]] = ("ignore", "disable")
    takes_targets: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InvalidRequest("The version column must be given by name.", given=type(self.column).__name__)

    def check(self, schema: pa.Schema, key_names: Sequence[str]) -> None:
        """See :class:`merge_engines.engine.MergeEngine`."""
        if self.column not in schema.names:
            raise InvalidRequest("The table has no column of that name to hold the version.", column=self.column)
        if self.column in key_names:
            raise InvalidRequest("The version can't be part of the key: it never changes.", column=self.column)
        kind = schema.field(self.column).type
        if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
            raise InvalidRequest("The version column must be an integer or a timestamp.", column=self.column, type=kind)

    def merge(self, operations: Operations) -> Merged:
        """See :class:`merge_engines.engine.MergeEngine`."""
        refuse_targets(operations, "versioned")
        refuse_deletes(operations, "versioned")
        column = operations.pool.column(self.column)
        stored, incoming = operations.by_key(operations.stored), operations.incoming
        after = np.where((stored < 0) | _not_older(column, incoming, stored), incoming, stored)
        if not operations.is_single.all():
            exists, no_deletes = np.ones(len(after), bool), np.zeros(len(after), bool)
            exists[operations.starts] = operations.stored >= 0
            history = history_of(operations, ~operations.is_single, no_deletes, exists)
            chosen = _newest(column, history.runs)
            after[history.operations] = history.runs.places[chosen[history.elements]]
        return Merged(operations.pool, operations.before(after), after)


def _newest(column: pa.Array, runs: Runs) -> np.ndarray:
    """The element with the highest version up to each element of a run; among equal versions the last."""
    places = runs.places
    if column.null_count:
        return choose(lambda own, earlier: _not_older(column, places[own], places[earlier]), runs)
    versions = numbers_of(column)[places]
    is_newest = versions == accumulate(np.maximum, versions, runs)
    # The first element of a run is the newest so far, so no element takes its value from the run before.
    return np.maximum.accumulate(np.where(is_newest, np.arange(len(places)), 0))


def _not_older(column: pa.Array, places: np.ndarray, than: np.ndarray) -> np.ndarray:
    """Whether the versions at ``places`` are at least those at ``than``."""
    versions = numbers_of(column)
    is_higher: np.ndarray = versions[places] >= versions[than]
    if not column.null_count:
        return is_higher
    is_valid = validity_of(column)
    return ~is_valid[than] | (is_valid[places] & is_higher)
