"""Operations that an engine does not take. A table refuses them earlier; here they are refused whoever asks."""

from __future__ import annotations

from logformat.errors import InvalidRequest, UnsupportedOperation
from merge_engines.engine import Operations

TOO_LARGE = "One batch can't hold more than 2 GiB of a column; make it smaller."


def refuse_targets(operations: Operations, engine: str) -> None:
    """Refuse partial operations.

    Raises:
        UnsupportedOperation: They are partial.
    """
    if operations.is_partial:
        raise UnsupportedOperation(f"A table of merge engine {engine} takes whole rows only; leave out `columns`.")


def refuse_deletes(operations: Operations, engine: str) -> None:
    """Refuse deletes.

    Raises:
        InvalidRequest: There is one.
    """
    if operations.is_delete.any():
        raise InvalidRequest(f"Merge engine {engine} knows no deletes; they are ignored or disabled before it.")
