"""Changes of a table's definition: each is one edit of the catalog, and no row is touched.

* An edit is decided in its turn, so it sees every other change of the definition.
* The definition file beside the data is written before the edit; after an error it is as the catalog says.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from kvstore.errors import InvalidRequest, LogFailed, NoSuchTable, SchemaMismatch, StoreFull, TableExists
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.table_files import DefinitionEdit, TableFiles
from logformat.catalog.edits import AddSchema, AlterTable, RenameTable, TableOptions
from logformat.ids import SchemaId
from logformat.rows import schema as schemas

SCHEMAS_MAX = 2**15 - 1


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

        def edit_of(now: TableDefinition) -> AddSchema:
            known = set(now.schema.names)
            if doubled := [field.name for field in fields if field.name in known]:
                raise SchemaMismatch("The table has a column of that name; choose another.", columns=doubled)
            whole = schemas.normalise(pa.schema([*now.schema, *fields]), now.primary_key or ())
            if len(now.schemas) == SCHEMAS_MAX:
                raise InvalidRequest("A table has at most this many schemas; make a new one.", schemas=SCHEMAS_MAX)
            return AddSchema(table_id=now.id, schema_id=SchemaId(now.schema_id + 1), columns=schemas.to_json(whole))

        # Before other processes have to wait: thousands of columns take a while.
        prepared = edit_of(table)
        self._append(table, lambda _, now: prepared if now.schema_id == table.schema_id else edit_of(now))

    def rename(self, table: TableDefinition, name: str) -> None:
        """Give a table another name; see :meth:`kvstore.Store.rename_table`."""

        def decide(state: CatalogState, now: TableDefinition) -> RenameTable:
            if state.table(name) is not None:
                raise TableExists("There is a table of that name; choose another, or drop it.", table=name)
            return RenameTable(table_id=now.id, name=name)

        self._append(table, decide)

    def alter(self, table: TableDefinition, altered: Callable[[TableOptions], TableOptions]) -> None:
        """Change the options of a table; see :meth:`kvstore.Store.alter_table`."""
        self._append(table, lambda _, now: AlterTable(table_id=now.id, options=altered(now.options)))

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
        except (StoreFull, LogFailed):
            self._definitions.complete(self._journal, table.id)
            raise
