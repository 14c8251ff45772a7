"""Rows that are made column by column: partial updates and aggregates.

* The first row of a key is the incoming one as it is; each further upsert computes a row.
* Columns that are no targets keep what the stored row has, or null, for as long as the batch goes on: nobody sets
  them. So whether a partial delete removes the row depends on the stored row only.
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
        function_of: Given the name of a column that is not part of the key.

    Raises:
        InvalidRequest: A result can't be stored.
    """
    pool, fates = operations.pool, _fates_of(operations)
    after = np.where(fates.is_delete, -1, operations.incoming)
    if fates.is_computed.any():
        computed, sources = _sources_of(operations, fates)
        after[computed] = pool.num_rows + np.arange(len(computed))
        pool = _extended(operations, function_of, computed, sources)
    if fates.does_nothing.any():
        after = operations.kept(after, fates.does_nothing)
    return Merged(pool, operations.before(after), after)


@dataclass(frozen=True, slots=True)
class _Fates:
    """What becomes of the row under each operation: bool ``(n,)`` in the sequence of ``Operations.order``.

    Attributes:
        is_delete: It is one.
        exists: There is a row before it.
        is_computed: It leaves a row that is computed. Any other upsert that does something leaves the incoming row,
            any other delete none.
        does_nothing: It is an upsert that changes no column.
    """

    is_delete: np.ndarray
    exists: np.ndarray
    is_computed: np.ndarray
    does_nothing: np.ndarray


def _fates_of(operations: Operations) -> _Fates:
    is_delete = operations.is_delete[operations.order]
    removes = is_delete & operations.by_key(_removable(operations)) if is_delete.any() else is_delete
    exists = np.empty(len(is_delete), bool)
    exists[1:] = ~removes[:-1]
    exists[operations.starts] = operations.stored >= 0
    only_keys = operations.is_partial and operations.targets == frozenset(operations.key_names)
    changes = is_delete | (not only_keys)
    return _Fates(is_delete, exists, exists & ~removes & changes, exists & ~changes)


def _removable(operations: Operations) -> np.ndarray:
    """Whether a delete removes the row of a key, for nothing or too little would be left in it: bool ``(m,)``."""
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


def _sources_of(operations: Operations, fates: _Fates) -> tuple[np.ndarray, Sources]:
    """The operations whose rows are computed, in the order they will stand in, and what from."""
    is_pair = operations.is_single & ~fates.is_delete[operations.starts]
    pairs = operations.starts[is_pair & fates.is_computed[operations.starts]]
    history = history_of(operations, ~is_pair, fates.is_delete, fates.exists)
    is_wanted = fates.is_computed[history.operations]
    computed = np.concatenate([pairs, history.operations[is_wanted]])
    stored = operations.by_key(operations.stored)[pairs]
    return computed, Sources(stored, operations.incoming[pairs], history.runs, history.elements[is_wanted])


def _extended(
    operations: Operations, function_of: Callable[[str], Function], computed: np.ndarray, sources: Sources
) -> pa.RecordBatch:
    """The pool with the computed rows behind."""
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
