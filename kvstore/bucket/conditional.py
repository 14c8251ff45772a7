"""Conditional writes in a bucket's group: each is decided by the rows that the requests before it have left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from kvstore.bucket.write_path import Outcome, WritePath
from kvstore.errors import InvalidRequest, SchemaMismatch, WriterRejected
from kvstore.meta.state import TableDefinition
from kvstore.request.encoded import ComparedRequest, SmallConditional, SmallRequest, Submitted, encoded_writes
from kvstore.request.preparation import request_of, requests_of, up_to_date
from kvstore.request.request import ConditionalRequest, Request
from kvstore.request.row_layout import layout_of
from kvstore.request.targets import renamed
from logformat.binary_column import BinaryColumn


def apply_in_order(path: WritePath, group: Sequence[Submitted]) -> list[Outcome | None]:
    """Apply requests in order; see :meth:`WritePath.apply_all`, also for errors.

    Returns:
        For each request its outcome; None for a conditional one that had nothing to write.
    """
    definition = path.definition
    whole = [up_to_date(each, definition) for each in group if isinstance(each, (Request, SmallRequest))]
    if len(whole) == len(group):
        return [*path.apply_all(whole)]
    found: list[Outcome | None] = []
    for kind, run in groupby(group, _kind):
        if kind is ConditionalRequest:
            found += [_apply_if(path, each) for each in run if isinstance(each, ConditionalRequest)]
            continue
        if kind is ComparedRequest:
            found += [_apply_compared(path, each) for each in run if isinstance(each, ComparedRequest)]
            continue
        plain = [each for each in run if not isinstance(each, (ConditionalRequest, ComparedRequest))]
        requests = requests_of(plain, path.definition)
        applied = iter(path.apply_all([each for each in requests if not isinstance(each, InvalidRequest)]))
        found += [each if isinstance(each, InvalidRequest) else next(applied) for each in requests]
    return found


def _kind(request: Submitted) -> type | None:
    kinds = ConditionalRequest, ComparedRequest
    return next((kind for kind in kinds if isinstance(request, kind)), None)


def _apply_compared(path: WritePath, request: ComparedRequest) -> Outcome | None:
    try:
        first = path.answered(request.then)
    except WriterRejected as error:
        return error
    if first is not None:
        return first
    request.found[:] = path.memtable.get(request.keys)
    if request.found != request.stored:
        return None
    return path.apply_all([up_to_date(request.then, path.definition)])[0]


def _apply_if(path: WritePath, request: ConditionalRequest) -> Outcome | None:
    try:
        made = decided(request, path.definition, path.memtable.get)
    except InvalidRequest as error:
        return error
    return None if made is None else path.apply_all([made])[0]


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
        there = [(code, value or None) for code, value in zip(request.keys, values, strict=True)]
        if all(value is None or request.writes.rows.hash_of(code, value) is not None for code, value in there):
            operations = request.operations_on([value for _, value in there])
            return None if operations is None else SmallRequest(operations, request.writes)
    known = definition.named_as(request.definition)
    if known is not definition and len(definition.stored) > len(request.definition.stored):
        # A row that is written whole would lose what others have stored in the new columns.
        raise SchemaMismatch("Columns were renamed and added since this write began; repeat it.", table=definition.name)
    found = [(key, value) for key, value in zip(request.keys, values, strict=True) if value]
    keys, stored = (BinaryColumn.from_list([each[half] for each in found]) for half in (0, 1))
    rows, _ = layout_of(known).decode_found(keys, stored)
    changes = request.decide(known, rows)
    if changes is None:
        return None
    if known is not definition:
        changes = renamed(changes, definition.renamed_since(request.definition.schema_id))
    return request_of(changes, definition)
