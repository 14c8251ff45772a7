"""Writes whose rows are tested again in their bucket's turn, so that no write of others in between is lost.

* ``decide`` is called in the turn of a bucket, with the rows as they are then.
* Each bucket is atomic for itself; an error lists the buckets that have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import shown
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import (
    BatchTooLarge,
    InvalidRequest,
    InvalidTargetColumns,
    SchemaMismatch,
    StoreError,
    UnsupportedOperation,
)
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Reply, answer_of, uninterrupted, wait_for
from kvstore.read.scan import rows_where
from kvstore.request.encoded import SmallConditional, encoded_writes
from kvstore.request.partition import row_indices_by_bucket
from kvstore.request.request import ConditionalRequest
from kvstore.request.results import AppendResult, WriteResult, spanning
from kvstore.request.row_layout import layout_of
from kvstore.request.targets import schema_given
from logformat.checksum import key_sums
from logformat.ids import BucketId
from logformat.rows import intake
from logformat.rows.changes import Changes
from logformat.rows.given import row_of
from logformat.rows.python_values import MISFITS

Decide: TypeAlias = Callable[[TableDefinition, pa.RecordBatch], Changes | None]


def apply_if(
    handles: Sequence[BucketHandle], definition: TableDefinition, keys: Iterator[pa.RecordBatch], decide: Decide
) -> WriteResult:
    """Apply what ``decide`` makes of the rows of some keys, a batch of each bucket after the other.

    Returns:
        The results of the buckets in which anything was written.

    Raises:
        StoreError: A batch failed; its error lists ``buckets_written``, also by the batches before it.
    """
    results_of: dict[BucketId, list[AppendResult]] = {}
    for batch in keys:
        places_of = row_indices_by_bucket(definition, batch, BucketId(0))
        parts = {bucket: batch if places is None else batch.take(places) for bucket, places in places_of}
        _apply_parts(handles, definition, parts, decide, results_of)
    return WriteResult({bucket: spanning(results) for bucket, results in sorted(results_of.items())})


def _apply_parts(
    handles: Sequence[BucketHandle],
    definition: TableDefinition,
    parts: Mapping[BucketId, pa.RecordBatch],
    decide: Decide,
    results_of: dict[BucketId, list[AppendResult]],
) -> None:
    """Apply what ``decide`` makes of the rows of each bucket's keys; of half of them, if one batch can't have all."""
    answers: dict[BucketId, Future[AppendResult | None] | Reply[AppendResult | None]] = {}
    failed: StoreError | None = None
    try:
        uninterrupted(_submit)(handles, definition, parts, decide, answers)
        for answer in answers.values():
            answer_of(answer)
    except StoreError as error:
        failed = error
    answered = {bucket: answer for bucket, answer in answers.items() if wait_for(answer).exception() is None}
    for bucket, answer in answered.items():
        if (result := answer.result()) is not None:
            results_of.setdefault(bucket, []).append(result)
    if failed is None:
        return
    rest = {bucket: keys for bucket, keys in parts.items() if bucket not in answered}
    if not isinstance(failed, BatchTooLarge) or all(keys.num_rows == 1 for keys in rest.values()):
        if len(handles) > 1:
            failed.where["buckets_written"] = sorted(results_of)
        raise failed
    _apply_parts(
        handles, definition, {bucket: keys[: -(-len(keys) // 2)] for bucket, keys in rest.items()}, decide, results_of
    )
    others = {bucket: keys[-(-len(keys) // 2) :] for bucket, keys in rest.items() if len(keys) > 1}
    _apply_parts(handles, definition, others, decide, results_of)


def _submit(
    handles: Sequence[BucketHandle],
    definition: TableDefinition,
    parts: Mapping[BucketId, pa.RecordBatch],
    decide: Decide,
    answers: dict[BucketId, Future[AppendResult | None] | Reply[AppendResult | None]],
) -> None:
    for bucket, keys in parts.items():
        encoded = layout_of(definition).encode_keys(keys)
        handles[bucket].submit(request := ConditionalRequest(encoded.to_list(), decide, definition))
        answers[bucket] = request.answer


def deletion(where: pc.Expression | None = None) -> Decide:
    """Deletes the rows that are there, and of them only those for which an expression is true."""

    def decide(definition: TableDefinition, rows: pa.RecordBatch) -> Changes | None:
        with _OfUsers():
            deleted = rows if where is None else _only(rows, where)
        key = list(definition.primary_key or ())
        return Changes.deletes(deleted.select(key), definition.schema) if deleted.num_rows else None

    return decide


def update(definition: TableDefinition, where: pc.Expression, values: Mapping[str, Any]) -> Decide:
    """Sets columns of the rows for which an expression is true.

    Args:
        values: For each column its value, or an expression over the row as it is.

    Raises:
        InvalidRequest: A column or value is not possible.
        UnsupportedOperation: The table's engine merges rows.
    """
    check_last_row(definition)
    if not isinstance(values, Mapping) or not values:
        raise InvalidRequest("`values` is a dict from column name to value, and not empty.", values=shown(values))
    automatic, schema = definition.options.auto_increment, definition.schema
    if unknown := [name for name in values if name not in schema.names]:
        raise InvalidTargetColumns("The table has no such column.", unknown=unknown, columns=schema.names)
    if fixed := [name for name in values if name in (definition.primary_key or ()) or name == automatic]:
        raise InvalidTargetColumns("A column of the key, or one that the table fills, can't be set.", columns=fixed)
    literals = {name: value for name, value in values.items() if not isinstance(value, pc.Expression)}
    fields = pa.schema([schema.field(name) for name in literals])
    same = intake.one_batch([literals], fields, fills=False)
    computed = {name: value for name, value in values.items() if name not in literals}
    _computed(intake.empty(schema), computed)  # refuses what fails for every row

    def decide(definition: TableDefinition, rows: pa.RecordBatch) -> Changes | None:
        with _OfUsers():
            rows_met = _only(rows, where)
            if not rows_met.num_rows:
                return None
            columns = dict(zip(rows_met.schema.names, rows_met.columns, strict=True)) | _computed(rows_met, computed)
        for name in literals:
            columns[name] = same.column(name).take(pa.array(np.zeros(rows_met.num_rows, np.int64)))
        wanted = schema_given(definition, definition.schema, None)
        given = pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], wanted.names)
        try:
            return Changes.upserts(intake.conform(given, wanted))
        except SchemaMismatch as error:
            field = wanted.field(error.where["column"])
            if field.name in computed and pa.types.is_floating(given.column(field.name).type):
                error.message = f"Floats are computed for this column; cast them: (…).cast('{field.type}', safe=False)."
            raise

    return decide


def check_last_row(definition: TableDefinition) -> None:
    """Refuse a table in which a row that is written is merged with the stored one.

    Raises:
        UnsupportedOperation: It is.
    """
    if definition.options.merge_engine != "last_row":
        raise UnsupportedOperation(
            "Only a table of the engine `last_row` stores a row as it is given.",
            table=definition.name,
            merge_engine=definition.options.merge_engine,
        )


def replacement(definition: TableDefinition, row: Any, expected: Any) -> tuple[pa.RecordBatch, Decide]:
    """Stores a row if the stored one of its key is the expected one.

    Args:
        expected: The whole row, with or without its key; None if there is to be none.

    Returns:
        The key of the row, and what decides.

    Raises:
        InvalidRequest: A row does not fit, or has another key than the other.
        UnsupportedOperation: The table's engine merges rows.
    """
    check_last_row(definition)
    row, expected = row_of(row), row_of(expected)
    if not isinstance(row, Mapping) or not isinstance(expected, Mapping | None):
        raise SchemaMismatch("A row is a dict from column name to value.", row=shown(row), expected=shown(expected))
    given = intake.one_batch([row], schema_given(definition, definition.schema, None))
    key = layout_of(definition).key_schema
    key_row = given.select(key.names)
    there = None if expected is None else expected_row(definition, expected, key_row)

    def decide(definition: TableDefinition, rows: pa.RecordBatch) -> Changes | None:
        if rows.num_rows != (there is not None):
            return None
        if there is not None and stored(definition, completed(there, definition, rows)) != stored(definition, rows):
            return None
        return Changes.upserts(intake.conform(given, schema_given(definition, definition.schema, None)))

    return key_row, decide


def small_replacement(definition: TableDefinition, row: Any, expected: Any) -> tuple[BucketId, SmallConditional] | None:
    """The same as one request, and its bucket, if the rows are plain dicts of a table of small writes; else None."""
    writes = encoded_writes(definition)
    if writes is None or writes.keeps_first or type(row) is not dict or type(expected) not in (dict, NoneType):
        return None
    stored, there = writes.upserts(row, 1), None
    if stored is not None and expected is not None:
        there = writes.upserts({name: row[name] for name in definition.primary_key or ()} | expected, 1)
    if stored is None or (expected is not None and (there is None or there[0].code != stored[0].code)):
        return None
    given = dict(row), expected and dict(expected)
    operation, value = stored[0], None if there is None else there[0].value
    return writes.bucket_of(operation.key), SmallConditional(
        keys=[operation.code],
        decide=lambda now, rows: replacement(definition, *given)[1](now, rows),
        definition=definition,
        operations_on=lambda now: [operation] if now == [value] else None,
        writes=writes,
        answer=Reply(),
    )


def expected_row(definition: TableDefinition, expected: Mapping[str, Any], key_row: pa.RecordBatch) -> pa.RecordBatch:
    """The expected row with its key; a column that the table fills may be left out."""
    key = key_row.schema
    whole = dict(zip(key.names, (column[0] for column in key_row.columns), strict=True)) | dict(expected)
    automatic = definition.options.auto_increment
    fields = [field for field in definition.schema if field.name != automatic or automatic in expected]
    row = intake.one_batch([whole], pa.schema(fields))
    if not row.select(key.names).equals(key_row):
        raise InvalidRequest("The expected row has another key than the row.", key=key.names)
    return row


def completed(given: pa.RecordBatch, definition: TableDefinition, stored: pa.RecordBatch) -> pa.RecordBatch:
    """A row in the current schema: the value that the table filled is the stored one, if it was left out."""
    automatic = definition.options.auto_increment
    if automatic is not None and automatic not in given.schema.names:
        given = given.append_column(definition.schema.field(automatic), stored.column(automatic))
    return intake.conform(given, definition.schema)


def stored(definition: TableDefinition, rows: pa.RecordBatch) -> list[bytes]:
    """Rows as they are stored."""
    layout = layout_of(definition)
    sums = key_sums(layout.encode_keys(rows))
    return layout.encode_values(rows, sums, definition.schema_id)[0].to_list()


class _OfUsers:
    """Turns any error of the user's own functions, which an expression may call, into an error about the request."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # It would end the committer, in whose thread the expression is computed.
        if isinstance(error, Exception) and not isinstance(error, StoreError | MemoryError):
            raise InvalidRequest("A condition or value can't be computed.", reason=repr(error)) from error


def _only(rows: pa.RecordBatch, where: pc.Expression) -> pa.RecordBatch:
    (rows_met,) = rows_where([rows], where)
    return rows_met


def _computed(rows: pa.RecordBatch, values: Mapping[str, pc.Expression]) -> dict[str, pa.Array]:
    """The values of expressions for each row, by name.

    Raises:
        InvalidRequest: An expression fails for a row.
    """
    if not values:
        return {}
    from pyarrow import acero  # it imports pandas where there is one, which takes long

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([rows])))
    project = acero.Declaration("project", acero.ProjectNodeOptions(list(values.values()), list(values)), [source])
    try:
        results = project.to_table(use_threads=False).combine_chunks()
    except MISFITS as error:
        raise InvalidRequest(
            "A value can't be computed for these rows.", values=values, reason=str(error).partition("\n")[0]
        ) from error
    return {name: pa.concat_arrays(results.column(name).chunks) for name in values if results.num_rows}
