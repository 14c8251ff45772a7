"""Checks of a table's options and of added columns, before anything is written.

* Everything is refused here that an engine, an index or a bucket could not do later: what passes is journaled.
* Columns are given as they are stored (:func:`logformat.rows.schema.normalise`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
import pyarrow as pa

from kvstore.arguments import column_names, printable, shown
from kvstore.errors import InvalidRequest, SchemaMismatch, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.table.declared_schema import schema_of
from logformat.catalog.edits import ChangelogImage, DeleteBehavior, SecondaryIndex, SecondaryIndexes, TableOptions
from logformat.rows import schema as schemas
from merge_engines.aggregate import Aggregate
from merge_engines.engine import MergeEngine
from merge_engines.last_row import LastRow
from merge_engines.spec import engine_given, engine_of, spec_of

BUCKETS_MAX = 1024
INDEXES_MAX = 64
_MILLISECOND = dt.timedelta(milliseconds=1)
_COMPRESSIONS = (None, "lz4", "zstd")
_ID_TYPES = (pa.int32(), pa.int64())
_NULLABLE_KINDS = "An added column is null in the rows that are there; it must be nullable."


def options_of(
    schema: pa.Schema,
    key: Sequence[str] | None,
    *,
    merge_engine: Any = "last_row",
    changelog_image: Any = "full",
    compression: Any = "lz4",
    delete_behavior: Any = None,
    auto_increment: Any = None,
    skip_identical_updates: Any = False,
    retention: Any = None,
    indexes: Any = None,
) -> TableOptions:
    """The options of a new table.

    Args:
        schema: Its columns, as they are stored.
        key: Names of the key's columns; None for a log table.

    Raises:
        InvalidRequest: An option is not possible, or not together with another.
    """
    engine = engine_given(merge_engine)
    retention_ms = _milliseconds(retention)
    _one_of("changelog_image", changelog_image, get_args(ChangelogImage))
    _one_of("compression", compression, _COMPRESSIONS)
    _one_of("delete_behavior", delete_behavior, (None, *get_args(DeleteBehavior)))
    if not isinstance(skip_identical_updates, bool):
        raise InvalidRequest("skip_identical_updates is True or False.", given=shown(skip_identical_updates))
    if key is None:
        indexes_of(schema, key, indexes)
        given = (
            engine != LastRow(),
            changelog_image != "full",
            delete_behavior is not None,
            auto_increment is not None,
            skip_identical_updates,
        )
        if any(given):
            raise UnsupportedOperation(
                "A log table has no key, and so no merge engine, changelog image, delete behaviour, auto-increment"
                " column or identical updates; leave them out."
            )
        return TableOptions(compression=compression, retention_ms=retention_ms)
    engine.check(schema, key)
    if changelog_image == "wal" and isinstance(engine, Aggregate):
        raise UnsupportedOperation("The changelog of an aggregate needs the row before; use changelog_image='full'.")
    _check_auto_increment(auto_increment, schema, key, engine)
    return TableOptions(
        merge_engine=spec_of(engine),
        changelog_image=changelog_image,
        compression=compression,
        delete_behavior=_delete_behavior(delete_behavior, engine),
        auto_increment=auto_increment,
        skip_identical_updates=skip_identical_updates,
        retention_ms=retention_ms,
        indexes=indexes_of(schema, key, indexes),
    )


def altered_options(
    options: TableOptions, key: Sequence[str] | None, *, retention: Any, compression: Any, delete_behavior: Any
) -> TableOptions:
    """The options of a table after some of them are changed; ``...`` leaves one as it is.

    Raises:
        InvalidRequest: An option is not possible.
    """
    changed: dict[str, Any] = {}
    if retention is not ...:
        changed["retention_ms"] = _milliseconds(retention)
    if compression is not ...:
        _one_of("compression", compression, _COMPRESSIONS)
        changed["compression"] = compression
    if delete_behavior is not ...:
        if key is None:
            raise UnsupportedOperation("A log table has no key, and so no delete behaviour; leave it out.")
        _one_of("delete_behavior", delete_behavior, (None, *get_args(DeleteBehavior)))
        changed["delete_behavior"] = _delete_behavior(delete_behavior, engine_of(options.merge_engine))
    if not changed:
        raise InvalidRequest("Nothing is to be changed; give retention, compression or delete_behavior.")
    return msgspec.structs.replace(options, **changed)


def indexes_of(schema: pa.Schema, key: Sequence[str] | None, given: Any) -> SecondaryIndexes | msgspec.UnsetType:
    """The secondary indexes that a new table has.

    Args:
        schema: Its columns, as they are stored.
        key: Names of the key's columns; None for a log table.
        given: The columns of each, by its name; None for none.

    Raises:
        InvalidRequest: A name or a column is not possible.
    """
    if given is None:
        return msgspec.UNSET
    if not isinstance(given, Mapping):
        raise InvalidRequest("`indexes` is a dict from an index's name to its columns.", given=shown(given))
    indexes: SecondaryIndexes | msgspec.UnsetType = msgspec.UNSET
    for name, columns in given.items():
        indexes = _with_index(indexes, schema, key, name, columns)
    return indexes


def with_index(definition: TableDefinition, name: Any, columns: Any, unique: Any) -> TableOptions:
    """The options of a table with one more secondary index.

    Raises:
        InvalidRequest: A name or a column is not possible, or there is an index of that name.
        UnsupportedOperation: It can't be unique, since rows with the same values may be in different buckets.
    """
    if not isinstance(unique, bool):
        raise InvalidRequest("`unique` is True or False.", unique=shown(unique))
    indexes = _with_index(definition.options.indexes, definition.stored, definition.primary_key, name, columns)
    if unique:
        *others, made = indexes.known
        named = {definition.stored.field(number).name for number in made.columns}
        if definition.buckets > 1 and not set(definition.bucket_key or ()) <= named:
            raise UnsupportedOperation(
                "Rows with the same values may be in different buckets, which are written apart, so an index of this"
                " table is unique only if it has all columns of the bucket key.",
                index=name,
                bucket_key=list(definition.bucket_key or ()),
            )
        indexes = msgspec.structs.replace(indexes, known=[*others, msgspec.structs.replace(made, unique=True)])
    return msgspec.structs.replace(definition.options, indexes=indexes)


def without_index(definition: TableDefinition, name: Any) -> TableOptions:
    """The options of a table without one of its secondary indexes.

    Raises:
        InvalidRequest: There is no index of that name.
    """
    indexes = definition.options.indexes
    names = [each.name for each in definition.indexes]
    if not indexes or name not in names:
        raise InvalidRequest("The table has no such index.", index=shown(name), indexes=names)
    kept = [each for each in indexes.known if each.name != name]
    return msgspec.structs.replace(definition.options, indexes=msgspec.structs.replace(indexes, known=kept))


def indexes_like(table: TableDefinition, schema: pa.Schema) -> SecondaryIndexes | msgspec.UnsetType:
    """The secondary indexes of a table, for one with other columns; those of which it lacks a column are left out."""
    if not table.options.indexes:
        return msgspec.UNSET
    indexes = []
    for each in table.indexes:
        names = [table.stored.field(number).name for number in each.columns]
        if set(names) <= set(schema.names):
            indexes.append(msgspec.structs.replace(each, columns=list(map(schema.names.index, names))))
    return msgspec.structs.replace(table.options.indexes, known=indexes) if indexes else msgspec.UNSET


def _with_index(
    before: SecondaryIndexes | msgspec.UnsetType, stored: pa.Schema, key: Sequence[str] | None, name: Any, columns: Any
) -> SecondaryIndexes:
    if key is None:
        raise UnsupportedOperation("A log table has no key, and so no index; create a table with a primary key.")
    name, names = printable("name", name, schemas.NAME_BYTES_MAX), column_names("columns", columns)
    indexes = before.known if before else []
    if any(each.name == name for each in indexes):
        raise InvalidRequest("The table has an index of that name; choose another, or drop it.", index=name)
    there = schemas.without_dropped(stored)
    if unknown := [column for column in names if column not in there.names]:
        raise SchemaMismatch("The table has no such column.", unknown=unknown, columns=there.names)
    if nested := [column for column in names if pa.types.is_nested(there.field(column).type)]:
        raise InvalidRequest("An index can't be on lists, maps or structs; their values have no order.", columns=nested)
    if halves := [column for column in names if pa.types.is_float16(there.field(column).type)]:
        raise InvalidRequest("An index can't be on columns of float16; Arrow does not compare them.", columns=halves)
    if len(indexes) >= INDEXES_MAX:
        raise InvalidRequest(f"A table has at most {INDEXES_MAX} indexes; drop one.", index=name)
    index_id = before.next_id if before else 1
    made = SecondaryIndex(index_id=index_id, name=name, columns=list(map(stored.names.index, names)))
    return SecondaryIndexes(next_id=index_id + 1, known=[*indexes, made])


def bucket_key_of(schema: pa.Schema, key: Sequence[str] | None, given: Any) -> list[str] | None:
    """Columns whose values decide the bucket of a row; None for the primary key, or for no columns.

    Args:
        schema: The table's columns, as they are stored.
        key: Names of the primary key's columns; None for a log table.

    Raises:
        InvalidRequest: There is no such column, it is not part of the primary key, or its type can't be part of a key.
    """
    if given is None:
        return None
    names = column_names("bucket_key", given)
    if key is not None and not set(names) <= set(key):
        raise InvalidRequest(
            "Columns of the bucket key are some of the primary key's.", bucket_key=names, key=list(key)
        )
    schemas.normalise(schema, names)
    if key is None and (strict := [name for name in names if schema.field(name).nullable]):
        raise InvalidRequest("Columns of the bucket key take no nulls; declare them so.", columns=strict)
    return names


def added_fields(fields: Any) -> list[pa.Field]:
    """Fields to be added to a table.

    Raises:
        InvalidRequest: They are not fields, or take no nulls.
    """
    if isinstance(fields, (Mapping, type)):
        fields = schema_of(fields)
    listed = (
        [fields] if isinstance(fields, pa.Field) else list(fields) if isinstance(fields, (Sequence, pa.Schema)) else []
    )
    if not listed or not all(isinstance(field, pa.Field) for field in listed):
        raise InvalidRequest(
            "Columns to be added are a dict from name to type, or a list of pyarrow.Field.", given=shown(fields)
        )
    if strict := [field.name for field in listed if not field.nullable]:
        raise SchemaMismatch(_NULLABLE_KINDS, columns=strict)
    return listed


def new_names(given: Any) -> dict[str, str]:
    """New names of columns, by their names now.

    Raises:
        InvalidRequest: They are not names, or there is none.
    """
    if not isinstance(given, Mapping) or not given:
        raise InvalidRequest(
            "Give a dict from a column's name to its new name, and not an empty one.", given=shown(given)
        )
    names = dict(given)
    if not all(isinstance(name, str) for pair in names.items() for name in pair):
        raise InvalidRequest("Names of columns are text.", given=shown(given))
    return names


def _milliseconds(retention: Any) -> int | None:
    if retention is None:
        return None
    if not isinstance(retention, dt.timedelta) or retention < _MILLISECOND:
        raise InvalidRequest("retention is a datetime.timedelta of a millisecond or more.", given=shown(retention))
    return retention // _MILLISECOND


def _one_of(name: str, given: Any, allowed: tuple[Any, ...]) -> None:
    if not (given is None or isinstance(given, str)) or given not in allowed:
        raise InvalidRequest(f"{name} is one of {', '.join(map(str, allowed))}.", given=shown(given))


def _delete_behavior(given: DeleteBehavior | None, engine: MergeEngine) -> DeleteBehavior:
    if given is None:
        return engine.delete_behaviors[0]
    if given not in engine.delete_behaviors:
        raise InvalidRequest(
            "This merge engine does not have this delete_behavior.",
            delete_behavior=given,
            allowed=", ".join(engine.delete_behaviors),
        )
    return given


def _check_auto_increment(column: Any, schema: pa.Schema, key: Sequence[str], engine: MergeEngine) -> None:
    if column is None:
        return
    if not isinstance(column, str) or column not in schema.names:
        raise InvalidRequest("auto_increment is the name of a column.", given=shown(column), columns=schema.names)
    if column in key:
        raise InvalidRequest(
            "The table can't fill a column of its key: a row is stored under its key, also when it is sent twice. Give"
            " rows a key of their own, such as a UUID, or a number from a counter: counters.increment(…).",
            column=column,
            primary_key=list(key),
        )
    if schema.field(column).type not in _ID_TYPES:
        raise InvalidRequest(
            "An auto-increment column is an int32 or int64.",
            column=column,
            type=schema.field(column).type,
        )
    named = dict(engine.functions) if isinstance(engine, Aggregate) else {}
    if column in named or getattr(engine, "column", None) == column:
        raise InvalidRequest("The merge engine can't use the column that the table fills.", column=column)
