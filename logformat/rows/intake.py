"""Conversion of given data to record batches of a table's columns: only where nothing can be lost.

Python rows (dicts, dataclasses, pydantic models) and Arrow data (anything with the Arrow PyCapsule interface) follow
one rule: the values must fit the column's type as they are. Integers may change width, bytes may become fixed-width,
times may change unit, integers may become floats, if every value survives. Nothing is parsed, rounded or made null,
except that a Python float becomes the nearest float of a narrower type. Anything that does not fit raises
SchemaMismatch.

A nullable column that the data does not have is null. A column that the table does not have is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from logformat.errors import InvalidRequest, SchemaMismatch
from logformat.rows.arrow_values import as_type, nulls_within
from logformat.rows.given import arrow_of, is_row, keys_of, row_of, unnamed_index
from logformat.rows.python_values import FEW, MISFITS, column_of, few_rows

ROWS_TOGETHER = 1 << 13
"""Number of rows of an iterator that are converted together."""

Data = Any
"""A row (a dict, dataclass or pydantic model), a list or iterator of rows, a frame, a dataset, or anything with the
Arrow PyCapsule interface."""
Keys = Any
"""A key (scalar, tuple, dict), a list of keys, or Arrow data: the key's columns, or its only column."""


def record_batches(data: Data, schema: pa.Schema, *, fills: bool = True) -> Iterator[pa.RecordBatch]:
    """The rows of ``data`` as record batches of exactly this schema.

    Args:
        fills: Whether a nullable column that the data does not have is null; otherwise it is refused.

    Raises:
        SchemaMismatch: A column is missing, unknown, of the wrong type, or has a null although it takes none.
    """
    if is_row(data):
        data = [data]
    if isinstance(data, pa.RecordBatch):
        yield conform(data, schema, fills=fills)
    elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        yield _from_rows(data, schema, fills=fills)
    elif isinstance(data, Iterator) and not _speaks_arrow(data):
        while rows := list(islice(data, ROWS_TOGETHER)):
            yield _from_rows(rows, schema, fills=fills)
    else:
        for batch in _arrow_batches(data, schema.names):
            yield conform(batch, schema, fills=fills)


class ArrowIntake:
    """Intake of Arrow data that has the columns of a schema as they are: what is asked of each batch, and no more.

    Args:
        schema: Of flat columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._all_nullable, not_null, _ = _about(schema)
        self._not_null = list(map(schema.get_field_index, not_null))

    def batch(self, data: Data) -> pa.RecordBatch | None:
        """The rows, valid, in one piece; None if :func:`record_batches` has to convert them, or to refuse them.

        Its columns may be called nullable: :meth:`conform` makes it a batch of the schema.
        """
        kind = type(data)
        if (kind is not pa.Table and kind is not pa.RecordBatch) or not self._is_given(data.schema):
            return None
        if kind is pa.Table:
            pieces = data.to_batches()
            if len(pieces) != 1:
                return None
            (data,) = pieces
        try:
            data.validate(full=True)
        except pa.ArrowInvalid:
            return None
        for number in self._not_null:
            if data.column(number).null_count:
                return None
        return data

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of :meth:`batch` in the schema."""
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _is_given(self, given: pa.Schema) -> bool:
        return given.equals(self._all_nullable) or given.equals(self._schema)


def one_batch(data: Data, schema: pa.Schema, *, fills: bool = True) -> pa.RecordBatch:
    """Like :func:`record_batches`, all in one batch."""
    batches = list(record_batches(data, schema, fills=fills))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches) if batches else empty(schema)


def key_rows(keys: Keys, schema: pa.Schema) -> pa.RecordBatch:
    """Keys as one batch of the key's columns, in key order.

    Raises:
        SchemaMismatch: A key has too few or too many values, or they do not fit the columns.
    """
    keys = keys_of(keys, schema.names)
    if _speaks_arrow(keys):
        return _only_keys(_key_table(keys, schema), schema)
    if hasattr(keys, "tolist") and not isinstance(keys, (np.generic, memoryview)):
        keys = keys.tolist()  # a numpy array or a pandas index
    listed = keys if isinstance(keys, list) else [keys]
    return _only_keys([key_row(key, schema.names) for key in listed], schema)


def _only_keys(keys: Data, schema: pa.Schema) -> pa.RecordBatch:
    try:
        return one_batch(keys, schema)
    except SchemaMismatch as error:
        unknown = error.where.get("unknown")
        if unknown is None:
            raise
        raise SchemaMismatch(
            f"A key has only the columns of the primary key; of a frame, select them: frame[{schema.names}].",
            key=schema.names,
            unknown=unknown,
        ) from error


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def conform(
    batch: pa.RecordBatch, schema: pa.Schema, not_null: Sequence[str] | None = None, *, fills: bool = True
) -> pa.RecordBatch:
    """An Arrow batch with its columns ordered and typed as in ``schema``.

    Args:
        not_null: Columns that must have no null; by default those that are not nullable.
        fills: See :func:`record_batches`.

    Raises:
        SchemaMismatch: See :func:`record_batches`.
    """
    _validate(batch)
    given, about = batch.schema, _about(schema)
    if given.equals(about.all_nullable):
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    elif not given.equals(schema, check_metadata=True):
        if given.names != schema.names:
            batch = _with_columns(batch, schema, fills=fills)
        columns = []
        for column, field in zip(batch.columns, schema, strict=True):
            with _MisfitsOf(field):
                columns.append(as_type(column, field.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    _check_nulls(batch, schema, not_null)
    return batch


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema, *, fills: bool) -> pa.RecordBatch:
    """The batch with the columns of the schema in their order; missing ones are null."""
    dropped = unnamed_index(batch.schema).difference(schema.names)
    names = [name for name in batch.schema.names if name not in dropped]
    _check_names(names, schema, fills=fills)
    columns = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema.names)


def _from_rows(rows: Sequence[Any], schema: pa.Schema, *, fills: bool) -> pa.RecordBatch:
    kinds = set(map(type, rows))
    if kinds != _DICTS:
        if not all(issubclass(kind, Mapping) for kind in kinds):
            rows = list(map(row_of, rows))
        for kind in set(map(type, rows)):
            if not issubclass(kind, Mapping):
                raise SchemaMismatch(
                    "A row must be a dict from column name to value, a dataclass or a pydantic model.",
                    given=kind.__name__,
                )
    batch = None
    if len(rows) <= FEW:
        rows = _whole(rows, schema, fills=fills)
        batch = few_rows(rows, schema)
    if batch is None:
        columns = []
        for field, values in zip(schema, _values(rows, schema, fills=fills), strict=True):
            with _MisfitsOf(field):
                columns.append(column_of(values, field.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    _check_nulls(batch, schema, None)
    return batch


def _values(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, *, fills: bool) -> list[list[Any]]:
    """The values, column by column."""
    names = schema.names
    if set(map(type, rows)) == _DICTS and set(map(len, rows)) == {len(names)}:
        # With as many names as columns, a row that has every column has no other.
        with suppress(KeyError):
            return [list(map(itemgetter(name), rows)) for name in names]
    rows = _whole(rows, schema, fills=fills)
    return [[row[name] for row in rows] for name in names]


def _whole(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, *, fills: bool) -> Sequence[Mapping[str, Any]]:
    """The rows with every column of the schema; missing ones are null."""
    wanted = set(schema.names)
    other = [row for row in rows if row.keys() != wanted]
    if not other:
        return rows
    required = {field.name for field in schema if not (fills and field.nullable)}
    for row in other:
        if not required <= row.keys() <= wanted:
            _check_names(list(row), schema, fills=fills)
    nothing = dict.fromkeys(schema.names)
    return [row if row.keys() == wanted else {**nothing, **row} for row in rows]


def _arrow_batches(data: Data, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        data = arrow_of(data, names)
        if not _speaks_arrow(data):
            raise SchemaMismatch(
                "Rows must be a dict, a list or iterator of dicts, or Arrow data (pyarrow, pandas, polars, duckdb …).",
                given=type(data).__name__,
            )
        if isinstance(data, pa.Table):
            yield from data.to_batches()
        elif hasattr(data, "__arrow_c_stream__"):
            with pa.RecordBatchReader.from_stream(data) as reader:
                yield from reader
        else:
            yield pa.record_batch(data)
    except SchemaMismatch:
        raise
    except MISFITS as error:
        raise SchemaMismatch(
            "This Arrow data can't be read as rows of columns.", given=type(data).__name__, reason=str(error)
        ) from error


def _speaks_arrow(data: Data) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _key_table(keys: Data, schema: pa.Schema) -> pa.Table:
    """Arrow data as a table; a single column is the key's only column."""
    try:
        column = pa.chunked_array(keys if hasattr(keys, "__arrow_c_stream__") else [pa.array(keys)])
    except MISFITS as error:
        raise SchemaMismatch(
            "This Arrow data can't be read as keys.", given=type(keys).__name__, reason=str(error)
        ) from error
    if pa.types.is_struct(column.type):
        return pa.Table.from_struct_array(column)
    if len(schema) != 1:
        raise SchemaMismatch("This table's key has several columns; give a table of columns.", columns=schema.names)
    return pa.table([column], schema.names)


def key_row(key: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """A key (scalar, tuple or dict) as a dict of its columns.

    Raises:
        SchemaMismatch: It has too few or too many values.
    """
    if isinstance(key, pa.Scalar):
        with suppress(OverflowError, ValueError):  # Python has no such value; Arrow takes the scalar itself
            key = key.as_py()
    if isinstance(key, Mapping):
        return key
    values = key if isinstance(key, (tuple, list)) else (key,)
    if len(values) != len(names):
        raise SchemaMismatch("A key needs one value for each of its columns.", key=key, columns=list(names))
    return dict(zip(names, values, strict=True))


_DICTS = {dict}


class _MisfitsOf:
    """Turns errors about the values of a column into errors that name the column."""

    def __init__(self, field: pa.Field) -> None:
        self._field = field

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        facts = {"column": self._field.name, "expected": self._field.type} if error else {}
        if isinstance(error, InvalidRequest):
            raise SchemaMismatch(error.message, **{**error.where, **facts}) from error
        if isinstance(error, MISFITS):
            raise SchemaMismatch("A value does not fit the column's type.", **facts, reason=str(error)) from error


def _check_names(given: Sequence[str], schema: pa.Schema, *, fills: bool) -> None:
    there, names = set(given), set(schema.names)
    missing = [field.name for field in schema if field.name not in there and not (fills and field.nullable)]
    unknown = [name for name in given if name not in names]
    if missing:
        raise SchemaMismatch(
            "A column is missing; only a nullable column of a whole row may be left out.",
            missing=missing,
            given=list(given),
        )
    if unknown:
        raise SchemaMismatch(
            "The table has no such column, or fills it itself, or it is not among the `columns` to be written; leave it"
            " out.",
            unknown=unknown,
            columns=schema.names,
        )
    if len(set(given)) < len(given):
        raise SchemaMismatch("A column is given twice.", given=list(given))


def _validate(batch: pa.RecordBatch) -> None:
    """Validate data that another program made, since later code relies on its being valid."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch("This Arrow data is invalid; rebuild it.", **_invalid(batch), reason=str(error)) from error


def _invalid(batch: pa.RecordBatch) -> dict[str, str]:
    """The first column that is invalid by itself, if there is one."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return {"column": name}
    return {}


def _check_nulls(batch: pa.RecordBatch, schema: pa.Schema, not_null: Sequence[str] | None) -> None:
    about = _about(schema)
    for name in about.not_null if not_null is None else not_null:
        if nulls := batch.column(name).null_count:
            raise SchemaMismatch("This column does not allow nulls.", column=name, nulls=nulls)
    for name in about.nested:
        if nulls := nulls_within(batch.column(name)):
            raise SchemaMismatch("A value contains nulls that its type does not allow.", column=name, nulls=nulls)


class _About(NamedTuple):
    """What is asked of each batch of a schema.

    Attributes:
        all_nullable: The schema as others give it, which do not say what is not null.
        not_null, nested: Names of columns.
    """

    all_nullable: pa.Schema
    not_null: list[str]
    nested: list[str]


@lru_cache(maxsize=256)
def _about(schema: pa.Schema) -> _About:
    return _About(
        pa.schema([field.with_nullable(True).remove_metadata() for field in schema]),
        [field.name for field in schema if not field.nullable],
        [field.name for field in schema if pa.types.is_nested(field.type)],
    )
