"""SQL over the tables of a store, by DuckDB in this process.

* The tables that a query names are scanned lazily, with its columns and filters. It can read nothing else: no file, no
  variable of the program, no network; and it can't change the configuration that forbids this.
* DuckDB takes upper and lower case of names for the same; of tables whose names differ in nothing else it sees none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kvstore.arguments import place_of, shown
from kvstore.errors import InvalidRequest, StoreError
from kvstore.read.frames import not_installed
from kvstore.table.read_table import ReadTable

if TYPE_CHECKING:
    from kvstore.table.dataset import TableDataset

CONFIGURATION = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "lock_configuration": "true",
}
_CHANGES = "changes"
_PLACES = [("start", ("full", "earliest", "latest")), ("end", ("latest",))]
_WRITES = {"ALTER", "COPY", "CREATE", "DELETE", "DROP", "INSERT", "MERGE_INTO", "UPDATE"}
_MACRO = """CREATE MACRO changes
    (name) AS TABLE (FROM query_table('changes_' || sha256(concat_ws(chr(10), name)))),
    (name, start) AS TABLE (FROM query_table('changes_' || sha256(concat_ws(chr(10), name, start)))),
    (name, start, until) AS TABLE (FROM query_table('changes_' || sha256(concat_ws(chr(10), name, start, until))))"""


def run(query: str, names: Sequence[str], table: Callable[[str], ReadTable]) -> pa.RecordBatchReader:
    """Run a query; see :meth:`kvstore.Store.sql`.

    Args:
        names: Names of all tables.
        table: Returns the table of a name.
    """
    if not isinstance(query, str):
        raise InvalidRequest("A query is text.", query=shown(query))
    try:
        import duckdb
    except ImportError as error:
        raise not_installed("duckdb", error) from error
    failed: list[StoreError] = []

    def refused(error: Exception) -> StoreError:
        return failed[0] if failed else _refused(query, names, error)

    with ExitStack() as stack:
        connection = stack.enter_context(duckdb.connect(config=CONFIGURATION))
        try:
            connection.execute(_MACRO).fetchall()
            if any(statement.type.name in _WRITES for statement in connection.extract_statements(query)):
                raise InvalidRequest(
                    "`sql` only reads; write by the methods of a table, such as `upsert`.", query=shown(query)
                )
            for name, found in _named(connection, query, names, table):
                connection.register(name, found.keeping_errors(failed))
            relation = connection.sql(query)
            if relation is None:
                raise InvalidRequest("This statement has no rows; give a SELECT.", query=shown(query))
            reader = relation.to_arrow_reader()
        except duckdb.Error as error:
            raise refused(error) from error
        open_until_read = stack.pop_all()

    def batches() -> Iterator[pa.RecordBatch]:
        with open_until_read:
            try:
                yield from reader
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise refused(error) from error

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _refused(query: str, names: Sequence[str], error: Exception) -> InvalidRequest:
    reason = str(error).strip()
    if not reason.startswith("Catalog Error: Table "):
        return InvalidRequest("This query can't be run.", query=shown(query), reason=reason)
    # What DuckDB suggests is a table of its own.
    reason = reason.partition("\n")[0]
    return InvalidRequest("This query can't be run.", query=shown(query), reason=reason, tables=list(names))


def _named(
    connection: Any, query: str, names: Sequence[str], table: Callable[[str], ReadTable]
) -> Iterator[tuple[str, TableDataset]]:
    """What a query names, by the name under which it looks for it."""
    same = Counter(name.lower() for name in names)
    there = {name.lower(): name for name in names if same[name.lower()] == 1}
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    tree = json.loads(text)
    is_select = not tree["error"]  # other statements, such as PRAGMA, may be about all tables; so is SHOW TABLES
    if not is_select or any(node.get("type") == "SHOW_REF" for node in _nodes(tree)):
        yield from ((name, table(name).dataset()) for name in there.values())
        return
    for node in _nodes(tree):
        if node.get("type") == "BASE_TABLE" and (found := there.pop(node["table_name"].lower(), None)) is not None:
            yield found, table(found).dataset()
        elif node.get("type") == "TABLE_FUNCTION" and node["function"]["function_name"].lower() == _CHANGES:
            given = [_literal(each) for each in node["function"]["arguments"]]
            name, *rest = given or [""]
            places = [
                place_of(f"`{argument}` of changes()", text, *words)
                for text, (argument, words) in zip(rest, _PLACES, strict=False)  # DuckDB refuses what is too much
            ]
            digest = sha256("\n".join(given).encode()).hexdigest()  # any text is a name, then
            yield f"{_CHANGES}_{digest}", table(name).changes_dataset(*places)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _literal(argument: Any) -> str:
    literal = argument["expression"].get("literal")
    if literal is None:
        raise InvalidRequest("Arguments of changes() are constants: a table's name, a start and an end.")
    return str(literal["text"])
