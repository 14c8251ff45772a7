"""Changes of a table's definition: each is one edit of the catalog, and no row is touched.

* An edit is decided in its turn, so it sees every other change of the definition.
* The definition file beside the data is written before the edit; after an error it is as the catalog says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace

from kvstore.errors import InvalidRequest, LogFailed, NoSuchTable, NotAStore, SchemaMismatch, StoreFull, TableExists
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_files import DefinitionEdit, TableFiles
from logformat.catalog.edits import AddSchema, AlterColumns, AlterTable, RenameTable, TableOptions
from logformat.ids import SchemaId
from logformat.rows import schema as schemas
from merge_engines.spec import engine_columns, with_columns

SCHEMAS_MAX = 2**15 - 1


class CommitsOpen(Exception):
    """Commits over several buckets of the table have not ended."""


class Alterations:
    """Changes of the definitions of a store's tables.

    Args:
        definitions: The files beside the data.
    """

    def __init__(self, journal: Journal, definitions: TableFiles) -> None:
        self._journal = journal
        self._definitions = definitions

    def add_columns(self, table: TableDefinition, fields: list[pa.Field]) -> None:
        """Add columns; see :meth:`kvstore.Store.add_columns`."""
        # Before other processes have to wait: thousands of columns take a while.
        prepared = columns_added(table, fields)
        self._append(table, lambda _, now: prepared if now.schema_id == table.schema_id else columns_added(now, fields))

    def rename(self, table: TableDefinition, name: str) -> None:
        """Give a table another name; see :meth:`kvstore.Store.rename_table`."""
        self._append(table, lambda state, now: renamed(state, now, name))

    def rename_columns(self, table: TableDefinition, names: Mapping[str, str]) -> None:
        """Give columns other names; see :meth:`kvstore.Store.rename_columns`."""
        _check_there(table, list(names))
        if changed := {name: new for name, new in names.items() if name != new}:
            self._append(table, lambda _, now: columns_renamed(now, changed))

    def drop_columns(self, table: TableDefinition, names: Sequence[str]) -> None:
        """Drop columns; see :meth:`kvstore.Store.drop_columns`."""
        self._append(table, lambda _, now: columns_dropped(now, names))

    def alter(
        self, table: TableDefinition, altered: Callable[[TableDefinition], TableOptions], *, once_ended: bool = False
    ) -> None:
        """Change the options of a table; see :meth:`kvstore.Store.alter_table`.

        Args:
            once_ended: Whether to refuse while commits over several buckets have not ended.

        Raises:
            CommitsOpen: They have not. Nothing was changed.
        """

        def decide(state: CatalogState, now: TableDefinition) -> AlterTable:
            if once_ended and state.writers_of(table.id).commits:
                raise CommitsOpen
            return AlterTable(table_id=now.id, options=altered(now))

        self._append(table, decide)

    def _append(
        self, table: TableDefinition, decide: Callable[[CatalogState, TableDefinition], DefinitionEdit]
    ) -> None:
        def decided(state: CatalogState) -> DefinitionEdit:
            now = state.tables.get(table.id)
            if now is None:
                raise NoSuchTable("The table was dropped.", table=table.name)
            return self._definitions.before(state, decide(state, now))

        try:
            self._journal.append(decided)
        except (StoreFull, LogFailed, NotAStore):
            self._definitions.complete(self._journal, table.id)
            raise


def columns_added(now: TableDefinition, fields: list[pa.Field]) -> AddSchema:
    """The edit that adds columns to a table.

    Raises:
        SchemaMismatch: It has a column of such a name.
        InvalidRequest: A name or a type is not possible, or there would be too many columns.
    """
    names = set(now.schema.names)
    if doubled := [field.name for field in fields if field.name in names]:
        raise SchemaMismatch("The table has a column of that name; choose another.", columns=doubled)
    added = list(schemas.normalise(pa.schema([*now.schema, *fields]), now.primary_key or ()))[len(now.schema) :]
    whole = pa.schema([*now.stored, *added])
    if len(whole) > schemas.COLUMNS_MAX:
        raise InvalidRequest(
            f"A table has at most {schemas.COLUMNS_MAX} columns, dropped ones included; make a new one.",
            columns=len(whole),
        )
    return AddSchema(table_id=now.id, schema_id=_next_schema(now), columns=schemas.to_json(whole))


def renamed(state: CatalogState, now: TableDefinition, name: str) -> RenameTable:
    """The edit that gives a table another name.

    Raises:
        TableExists: There is a table of that name.
    """
    if state.table(name) is not None:
        raise TableExists("There is a table of that name; choose another, or drop it.", table=name)
    return RenameTable(table_id=now.id, name=name)


def columns_renamed(now: TableDefinition, names: Mapping[str, str]) -> AlterColumns:
    """The edit that gives columns of a table other names.

    Raises:
        SchemaMismatch: There is no such column.
        InvalidRequest: A name is not possible, or two columns would have it.
    """
    _check_there(now, list(names))
    for name in names.values():
        schemas.check_name(name)
    # Refuses a name that is there twice.
    schemas.normalise(pa.schema([field.with_name(names.get(field.name, field.name)) for field in now.schema]))
    return _altered(now, [field.with_name(names.get(field.name, field.name)) for field in now.stored], names)


def columns_dropped(now: TableDefinition, names: Sequence[str]) -> AlterColumns:
    """The edit that drops columns of a table.

    Raises:
        SchemaMismatch: There is no such column.
        InvalidRequest: A column is needed.
    """
    _check_there(now, names)
    kinds = {
        "the key": now.primary_key or (),
        "the bucket key": now.bucket_key or (),
        "the merge engine": engine_columns(now.options.merge_engine),
        "auto_increment": (now.options.auto_increment,),
    }
    for kind, used in kinds.items():
        if needed := [name for name in names if name in used]:
            raise InvalidRequest(
                f"A column of {kind} can't be dropped; copy the rows into another table.", columns=needed
            )
    for index in now.indexes:
        if needed := [name for name in names if now.stored.names.index(name) in index.columns]:
            raise InvalidRequest(
                "A column of an index can't be dropped; drop_index() first.", columns=needed, index=index.name
            )
    if set(now.schema.names) <= set(names):
        raise InvalidRequest("A table keeps at least one column; see drop_table().", columns=list(names))
    fields = [
        pa.field(schemas.dropped_name(number), field.type) if field.name in names else field
        for number, field in enumerate(now.stored)
    ]
    return _altered(now, fields, {})


def _check_there(now: TableDefinition, names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in now.schema.names]:
        raise SchemaMismatch("The table has no such column.", unknown=unknown, columns=now.schema.names)


def _altered(now: TableDefinition, fields: list[pa.Field], names: Mapping[str, str]) -> AlterColumns:
    """The edit of a table whose stored columns become these; ``names`` has the new names of those that have one."""

    def named(columns: Sequence[str] | None) -> list[str] | None:
        return None if columns is None else [names.get(name, name) for name in columns]

    automatic = now.options.auto_increment
    return AlterColumns(
        table_id=now.id,
        schema_id=_next_schema(now),
        columns=schemas.to_json(pa.schema(fields)),
        primary_key=named(now.primary_key),
        bucket_key=named(now.bucket_key),
        options=replace(
            now.options,
            merge_engine=with_columns(now.options.merge_engine, names),
            auto_increment=None if automatic is None else names.get(automatic, automatic),
        ),
    )


def _next_schema(now: TableDefinition) -> SchemaId:
    if len(now.schemas) == SCHEMAS_MAX:
        raise InvalidRequest("A table has at most this many schemas; make a new one.", schemas=SCHEMAS_MAX)
    return SchemaId(now.schema_id + 1)
