"""Rows that are computed column by column: partial updates and aggregates.

* The first row of a key is the incoming row as it is; each further upsert computes a row.
* Columns that are not targets keep the stored value, or null, through the whole batch. So whether a partial delete
  removes the row depends only on the stored row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from logformat.errors import InvalidRequest
from merge_engines.columns import take, validity_of
from merge_engines.engine import Merged, Operations
from merge_engines.functions.compute import compute
from merge_engines.functions.function import Function
from merge_engines.history import Sources, history_of
from merge_engines.refusals import TOO_LARGE


def update_columns(operations: Operations, function_of: Callable[[str], Function]) -> Merged:
    """Merge every target column by its function.

    Args:
        function_of: Takes the name of a column that is not part of the key.

    Raises:
        InvalidRequest: A result can't be stored.
    """
    pool, effects = operations.pool, _effects_of(operations)
    after = np.where(effects.is_delete, -1, operations.incoming)
    if effects.is_computed.any():
        computed, sources = _sources_of(operations, effects)
        after[computed] = pool.num_rows + np.arange(len(computed))
        pool = _extended(operations, function_of, computed, sources)
    if effects.does_nothing.any():
        after = operations.kept(after, effects.does_nothing)
    return Merged(pool, operations.before(after), after)


@dataclass(frozen=True, slots=True)
class _Effects:
    """Effect of each operation on its row: bool ``(n,)`` in the order of ``Operations.order``.

    Attributes:
        is_delete: The operation is a delete.
        exists: The key has a row before it.
        is_computed: The operation leaves a computed row. Any other upsert with an effect leaves the incoming row, any
            other delete leaves none.
        does_nothing: The operation is an upsert that changes no column.
    """

    is_delete: np.ndarray
    exists: np.ndarray
    is_computed: np.ndarray
    does_nothing: np.ndarray


def _effects_of(operations: Operations) -> _Effects:
    is_delete = operations.is_delete[operations.order]
    removes = is_delete & operations.by_key(_removable(operations)) if is_delete.any() else is_delete
    exists = np.empty(len(is_delete), bool)
    exists[1:] = ~removes[:-1]
    exists[operations.starts] = operations.stored >= 0
    only_keys = operations.is_partial and operations.targets == frozenset(operations.key_names)
    changes = is_delete | (not only_keys)
    return _Effects(is_delete, exists, exists & ~removes & changes, exists & ~changes)


def _removable(operations: Operations) -> np.ndarray:
    """Whether a delete removes the row of a key, because nothing, or too little, would be left in it: bool ``(m,)``."""
    removable = np.ones(len(operations.stored), bool)
    if operations.is_partial and not _is_needed(operations):
        assert operations.targets is not None
        for name, column in zip(operations.pool.schema.names, operations.pool.columns, strict=True):
            if name not in operations.targets and name != operations.automatic:
                removable &= (operations.stored < 0) | ~validity_of(column)[operations.stored]
    return removable


def _is_needed(operations: Operations) -> bool:
    """Whether a target apart from the key can't be null."""
    assert operations.targets is not None
    values = operations.targets - set(operations.key_names)
    return any(not operations.pool.schema.field(name).nullable for name in values)


def _sources_of(operations: Operations, effects: _Effects) -> tuple[np.ndarray, Sources]:
    """The operations whose rows are computed, in the order of the results, and the inputs of these rows."""
    is_pair = operations.is_single & ~effects.is_delete[operations.starts]
    pairs = operations.starts[is_pair & effects.is_computed[operations.starts]]
    history = history_of(operations, ~is_pair, effects.is_delete, effects.exists)
    is_wanted = effects.is_computed[history.operations]
    computed = np.concatenate([pairs, history.operations[is_wanted]])
    stored = operations.by_key(operations.stored)[pairs]
    return computed, Sources(stored, operations.incoming[pairs], history.runs, history.elements[is_wanted])


def _extended(
    operations: Operations, function_of: Callable[[str], Function], computed: np.ndarray, sources: Sources
) -> pa.RecordBatch:
    """The pool with the computed rows appended."""
    pool, targets = operations.pool, operations.targets
    stored, incoming = operations.by_key(operations.stored)[computed], operations.incoming[computed]
    columns = []
    for name, column in zip(pool.schema.names, pool.columns, strict=True):
        try:
            if name in operations.key_names:
                values = [take(column, incoming)]
            elif targets is not None and name not in targets:
                values = [take(column, stored)]
            else:
                values = compute(function_of(name), name, column, sources)
            columns.append(pa.concat_arrays([column, *values]))
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
            raise InvalidRequest(TOO_LARGE, column=name) from error
    return pa.RecordBatch.from_arrays(columns, schema=pool.schema)
