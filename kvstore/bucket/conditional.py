"""Conditional writes in a bucket's group: each is decided by the rows that the requests before it have left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from kvstore.bucket.write_path import Outcome, WritePath
from kvstore.errors import InvalidRequest, SchemaMismatch
from kvstore.request.preparation import request_of, requests_of
from kvstore.request.request import ConditionalRequest
from kvstore.request.row_layout import layout_of
from kvstore.request.small import SmallConditional, SmallRequest, Submitted, small_writes
from kvstore.request.targets import renamed
from logformat.binary_column import BinaryColumn


def apply_in_order(path: WritePath, group: Sequence[Submitted]) -> list[Outcome | None]:
    """Apply requests in order; see :meth:`WritePath.apply_all`, also for errors.

    Returns:
        For each request its outcome; None for a conditional one that had nothing to write.
    """
    writes = small_writes(path.definition)
    small = [each for each in group if isinstance(each, SmallRequest) and each.writes is writes]
    if len(small) == len(group):
        return [*path.apply_all(small)]
    found: list[Outcome | None] = []
    for is_conditional, run in groupby(group, lambda each: isinstance(each, ConditionalRequest)):
        if is_conditional:
            found += [_apply_if(path, each) for each in run if isinstance(each, ConditionalRequest)]
            continue
        requests = requests_of([each for each in run if not isinstance(each, ConditionalRequest)], path.definition)
        applied = iter(path.apply_all([each for each in requests if not isinstance(each, InvalidRequest)]))
        found += [each if isinstance(each, InvalidRequest) else next(applied) for each in requests]
    return found


def _apply_if(path: WritePath, request: ConditionalRequest) -> Outcome | None:
    definition = path.definition
    if isinstance(request, SmallConditional) and request.writes is small_writes(definition):
        there = [(code, path.memtable.pending_value(code)) for code in request.keys]
        if all(value is None or request.writes.rows.hash_of(code, value) is not None for code, value in there):
            try:
                operations = request.operations_on([value for _, value in there])
            except InvalidRequest as error:
                return error
            return None if operations is None else path.apply_all([SmallRequest(operations, request.writes)])[0]
    known = definition.named_as(request.definition)
    if known is not definition and len(definition.stored) > len(request.definition.stored):
        # A row that is written whole would lose what others have stored in the new columns.
        return SchemaMismatch(
            "Columns were renamed and added since this write began; repeat it.", table=definition.name
        )
    found = [(key, value) for key, value in zip(request.keys, path.memtable.get(request.keys), strict=True) if value]
    keys, values = (BinaryColumn.from_list([each[half] for each in found]) for half in (0, 1))
    rows, _ = layout_of(known).decode_found(keys, values)
    try:
        changes = request.decide(known, rows)
        if changes is None:
            return None
        if known is not definition:
            changes = renamed(changes, definition.renamed_since(request.definition.schema_id))
        return path.apply_all([request_of(changes, definition)])[0]
    except InvalidRequest as error:
        return error
