"""SQL over the tables of a store, by DuckDB in this process.

* The tables that a query names are scanned lazily, with its columns and filters. Beside them it reads the data that the
  caller gives by name, and nothing else: no file, no variable of the program, no network; and it can't change the
  configuration that forbids this.
* DuckDB takes upper and lower case of names for the same; of tables whose names differ in nothing else it sees none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from hashlib import sha256
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from kvstore.arguments import bound_of, shown
from kvstore.errors import InvalidRequest, StoreError
from kvstore.read.frames import not_installed
from kvstore.table.read_table import ReadTable
from logformat.rows.given import arrow_of
from logformat.rows.python_values import MISFITS

CONFIGURATION = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "lock_configuration": "true",
}
AtOnce: TypeAlias = Callable[[Sequence[str]], AbstractContextManager[Callable[[str], ReadTable]]]
"""Opens tables by their names, and gives one after the other by its name."""
_CHANGES = "changes"
_PLACES = [("start", ("full", "earliest", "latest")), ("end", ("latest",))]
_WRITES = {"ALTER", "COPY", "CREATE", "DELETE", "DROP", "INSERT", "MERGE_INTO", "UPDATE"}
_MISSING = re.compile("Catalog Error: Table with name (.+) does not exist")
_MACRO = """CREATE MACRO changes
    (name) AS TABLE (FROM query_table('changes_' || sha256(concat_ws(chr(10), name)))),
    (name, start) AS TABLE (FROM query_table('changes_' || sha256(concat_ws(chr(10), name, start)))),
    (name, start, until) AS TABLE (FROM query_table('changes_' || sha256(concat_ws(chr(10), name, start, until))))"""


def run(
    query: str,
    names: Sequence[str],
    at_once: AtOnce,
    params: Sequence[Any] | Mapping[str, Any] | None = None,
    tables: Mapping[str, Any] | None = None,
) -> pa.RecordBatchReader:
    """Run a query; see :meth:`kvstore.Store.sql`.

    Args:
        names: Names of all tables.
        at_once: Opens the tables that the query names.
    """
    if not isinstance(query, str):
        raise InvalidRequest("A query is text.", query=shown(query))
    try:
        query.encode()
    except UnicodeEncodeError as error:  # of which DuckDB says that it is no text
        raise InvalidRequest("A query can't have lone surrogates.", query=shown(query)) from error
    if params is not None and not isinstance(params, (list, tuple, Mapping)):
        raise InvalidRequest("`params` is a list for ?, or a dict for $name.", params=shown(params))
    given = _given({} if tables is None else tables, names)
    try:
        import duckdb
    except ImportError as error:
        raise not_installed("duckdb", error) from error
    failed: list[StoreError] = []

    from kvstore.table.queries.dataset import TableDataset  # as duckdb: it imports what takes long

    def refused(error: Exception) -> StoreError:
        return failed[0] if failed else _refused(query, [*names, *given], error)

    with ExitStack() as stack:
        connection = stack.enter_context(duckdb.connect(config=CONFIGURATION))
        try:
            connection.execute(_MACRO).fetchall()
            statements = connection.extract_statements(query)
            if any(statement.type.name in _WRITES for statement in statements):
                raise InvalidRequest(
                    "`sql` only reads; write by the methods of a table, such as `upsert`.", query=shown(query)
                )
            if len(statements) > 1:
                raise InvalidRequest(
                    "A query is one statement; run others by themselves.",
                    query=shown(query),
                    statements=len(statements),
                )
            wanted = list(_named(connection, query, names))
            table = stack.enter_context(at_once([name for _, name, _ in wanted]))
            ours = (
                (known_as, table(name).dataset() if places is None else table(name).changes_dataset(*places))
                for known_as, name, places in wanted
            )
            for name, source in chain(ours, given.items()):
                connection.register(name, source.keeping_errors(failed) if isinstance(source, TableDataset) else source)
            relation = connection.sql(query, params=params or None)
            if relation is None:
                raise InvalidRequest("This statement has no rows; give a SELECT.", query=shown(query))
            reader = relation.to_arrow_reader()
        except duckdb.Error as error:
            raise refused(error) from error
        open_until_read = stack.pop_all()

    def batches() -> Iterator[pa.RecordBatch]:
        with open_until_read:
            yield pa.record_batch([])
            try:
                yield from reader
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise refused(error) from error

    begun = batches()
    next(begun)  # what is open is closed, then, also if nothing is read of it
    return pa.RecordBatchReader.from_batches(reader.schema, begun)


def _given(tables: Any, names: Sequence[str]) -> dict[str, Any]:
    """Data that the caller gives by name, as DuckDB takes it.

    Raises:
        InvalidRequest: A name is used twice, or is none; or it is no data.
    """
    if not isinstance(tables, Mapping):
        raise InvalidRequest("`tables` is a dict from name to data.", tables=shown(tables))
    taken, sources = {name.lower(): f"the store's table {name}" for name in names}, {}
    for name, data in tables.items():
        if not isinstance(name, str) or not name:
            raise InvalidRequest("A name in `tables` is text.", name=shown(name))
        if (other := taken.setdefault(name.lower(), f"the name {name}")) != f"the name {name}":
            raise InvalidRequest("SQL takes this name for another; give it another name.", name=name, other=other)
        if isinstance(data, ReadTable):
            sources[name] = data.dataset()
            continue
        try:
            # A named index of a pandas frame is a column.
            arrow = arrow_of(data, list(getattr(getattr(data, "index", None), "names", [])))
            if not hasattr(arrow, "__arrow_c_stream__"):
                raise TypeError("it is no Arrow data")
            sources[name] = pa.table(arrow)
        except (InvalidRequest, *MISFITS) as error:
            raise InvalidRequest(
                "`tables` has a frame, or other Arrow data, for each name.",
                name=name,
                given=type(data).__name__,
                reason=str(error).partition("\n")[0],
            ) from error
    return sources


def _refused(query: str, names: Sequence[str], error: Exception) -> InvalidRequest:
    reason = str(error).strip()
    if not reason.startswith("Catalog Error: Table "):
        return InvalidRequest("This query can't be run.", query=shown(query), reason=reason)
    # What DuckDB suggests is a table of its own.
    reason = reason.partition("\n")[0]
    missing = _MISSING.match(reason)
    alike = [name for name in names if missing is not None and name.lower() == missing[1].lower()]
    if len(alike) > 1:
        return InvalidRequest(
            "DuckDB takes upper and lower case of names for the same; rename one of these tables, or give its rows"
            " under another name in `tables`.",
            query=shown(query),
            tables=alike,
        )
    return InvalidRequest("This query can't be run.", query=shown(query), reason=reason, tables=list(names))


def _named(connection: Any, query: str, names: Sequence[str]) -> Iterator[tuple[str, str, Sequence[Any] | None]]:
    """What a query names: the name under which it looks for it, the table, and for changes their start and end."""
    same = Counter(name.lower() for name in names)
    there = {name.lower(): name for name in names if same[name.lower()] == 1}
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    tree = json.loads(text)
    is_select = not tree["error"]  # other statements, such as PRAGMA, may be about all tables; so is SHOW TABLES
    if not is_select or any(node.get("type") == "SHOW_REF" for node in _nodes(tree)):
        yield from ((name, name, None) for name in there.values())
        return
    for node in _nodes(tree):
        if node.get("type") == "BASE_TABLE" and (table := there.pop(node["table_name"].lower(), None)) is not None:
            yield table, table, None
        elif node.get("type") == "TABLE_FUNCTION" and node["function"]["function_name"].lower() == _CHANGES:
            given = [_literal(each) for each in node["function"]["arguments"]]
            name, *rest = given or [""]
            places = [
                bound_of(f"`{argument}` of changes()", text, *words)
                for text, (argument, words) in zip(rest, _PLACES, strict=False)  # DuckDB refuses what is too much
            ]
            digest = sha256("\n".join(given).encode()).hexdigest()  # any text is a name, then
            yield f"{_CHANGES}_{digest}", name, places


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
