"""Conditional writes in a bucket's group: each is decided by the rows that the requests before it have left."""

from __future__ import annotations

from collections.abc import Callable

from kvstore.errors import SchemaMismatch
from kvstore.meta.state import TableDefinition
from kvstore.request.encoded import SmallConditional, SmallRequest, encoded_writes
from kvstore.request.preparation import request_of
from kvstore.request.request import ConditionalRequest, Request
from kvstore.request.row_layout import layout_of
from kvstore.request.targets import renamed
from logformat.binary_column import BinaryColumn


def decided(
    request: ConditionalRequest, definition: TableDefinition, get: Callable[[list[bytes]], list[bytes]]
) -> Request | SmallRequest | None:
    """What a conditional request writes, given what is stored; None if nothing.

    Args:
        get: Values of encoded keys, in order; empty where a key is missing.

    Raises:
        InvalidRequest: It is refused.
        CorruptData: A stored row is damaged.
    """
    values = get(request.keys)
    if isinstance(request, SmallConditional) and request.writes is encoded_writes(definition):
        codec = request.writes.rows
        if all(map(codec.is_whole, filter(None, values))):
            operations, is_replaced = None, False
            try:
                operations = request.operations_on([value or None for value in values])
                # A transaction may write other keys than it has read.
                is_replaced = operations is not None and [each.code for each in operations] == request.keys
            finally:
                if not is_replaced:  # else it is verified when it is merged
                    for code, value in zip(request.keys, values, strict=True):
                        if value:
                            codec.hash_of(code, value)
            if operations is None:
                return None
            return SmallRequest(operations, request.writes, request.answer, stored=values if is_replaced else None)
    known = definition.named_as(request.definition)
    if known is not definition and len(definition.stored) > len(request.definition.stored):
        # A row that is written whole would lose what others have stored in the new columns.
        raise SchemaMismatch("Columns were renamed and added since this write began; repeat it.", table=definition.name)
    pairs = [(key, value) for key, value in zip(request.keys, values, strict=True) if value]
    keys, stored = (BinaryColumn.from_list([each[half] for each in pairs]) for half in (0, 1))
    rows, _ = layout_of(known).decode_found(keys, stored)
    changes = request.decide(known, rows)
    if changes is None:
        return None
    if known is not definition:
        changes = renamed(changes, definition.renamed_since(request.definition.schema_id))
    return request_of(changes, definition)
