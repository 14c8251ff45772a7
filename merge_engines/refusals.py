"""Checks for operations that an engine does not take. The table refuses them earlier; this is the second check."""

from __future__ import annotations

from logformat.errors import InvalidRequest, UnsupportedOperation
from merge_engines.engine import Operations

TOO_LARGE = "One batch can't hold more than 2 GiB of a column; make it smaller."


def refuse_targets(operations: Operations, engine: str) -> None:
    """Refuse partial operations.

    Raises:
        UnsupportedOperation: The operations are partial.
    """
    if operations.is_partial:
        raise UnsupportedOperation(f"A table of merge engine {engine} takes whole rows only; leave out `columns`.")


def refuse_deletes(operations: Operations, engine: str) -> None:
    """Refuse deletes.

    Raises:
        InvalidRequest: An operation is a delete.
    """
    if operations.is_delete.any():
        raise InvalidRequest(f"Merge engine {engine} takes no deletes; the table ignores or disables them.")
