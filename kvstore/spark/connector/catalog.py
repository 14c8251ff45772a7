"""A store as a catalog of Spark: its tables, their properties, and changes of them.

Properties have the names that Fluss gives them; what Spark itself adds to a table's properties is left alone.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec import structs
from pyspark.sql.types import StringType, StructField, StructType

from kvstore import Aggregate, Versioned, listagg
from kvstore.errors import InvalidRequest, UnsupportedOperation
from kvstore.meta.state import TableDefinition
from kvstore.replica.client import ObjectStore
from kvstore.replica.location import replica_at
from kvstore.shared.in_place import SharedCatalog
from kvstore.shared.table import has_shared_tables
from kvstore.spark.options import Kind, Options, directory_of
from kvstore.spark.read import replica
from kvstore.spark.read.address import opened
from kvstore.spark.types import decode_columns, schema_to_store, spark_schema
from kvstore.spark.write.new_table import NewTable, replaced_by
from kvstore.store.store import Store, new_table, open_store, table_like, table_name
from logformat.catalog.edits import CreateTable, TableOptions

KEY, BUCKETS, BUCKET_KEY = "primary.key", "bucket.num", "bucket.key"
ENGINE, VERSION = "table.merge-engine", "table.merge-engine.versioned.ver-column"
FUNCTION, DELIMITER = re.compile("fields[.](.+)[.]agg"), re.compile("fields[.](.+)[.]listagg[.]delimiter")
IMAGE, DELETE, RETENTION = "table.changelog.image", "table.delete.behavior", "table.log.ttl"
COMPRESSION, INCREMENT = "table.log.arrow.compression.type", "auto-increment.fields"
ALTERABLE = (DELETE, RETENTION, COMPRESSION)
_OF_COLUMNS = ("fields.<column>.agg", "fields.<column>.listagg.delimiter")
NAMES = (KEY, BUCKETS, BUCKET_KEY, ENGINE, VERSION, *_OF_COLUMNS, IMAGE, *ALTERABLE, INCREMENT)
COLLATION = "collation"
_SPARKS = frozenset(("provider", "owner", "comment", COLLATION, "location", "external", "is_managed_location"))
_COMPRESSIONS = {"lz4_frame": "lz4", "lz4": "lz4", "zstd": "zstd", "none": None}
_UNITS = {
    name: unit
    for unit, names in {
        "milliseconds": "ms milli millis millisecond milliseconds",
        "seconds": "s sec secs second seconds",
        "minutes": "m min mins minute minutes",
        "hours": "h hour hours",
        "days": "d day days",
    }.items()
    for name in names.split()
}


def tables(path: str) -> list[str]:
    """Names of the tables of a store, or of the shared tables at a URL."""
    path = directory_of(path)
    if (url := replica_at(path)) is not None:
        client = ObjectStore(url)
        if has_shared_tables(client):
            return SharedCatalog(url, client).names()
        raise UnsupportedOperation("A replica does not list its tables in Spark; name the table.", url=url)
    with opened(path) as store:
        return store.list_tables()


@dataclass(frozen=True)
class Description:
    """A table as the catalog shows it.

    Attributes:
        key: Columns of the primary key that rows are read by; empty for a changelog, or a table without key.
        log_columns: Columns of a log table, which can be written, but has no rows to read; None for others.
    """

    properties: dict[str, str]
    key: frozenset[str]
    log_columns: StructType | None

    def columns(self, schema: StructType) -> StructType:
        """The columns of the source, without nulls in those of the key: statements name rows by it."""
        fields = [StructField(each.name, each.dataType, each.name not in self.key, each.metadata) for each in schema]
        return StructType(fields)


def described(given: Mapping[str, str]) -> Description:
    """What the catalog shows of a table.

    Raises:
        NotAStore, NoSuchTable: There is no such store or table.
    """
    options = Options.of(given)
    definition = _definition(options)
    key = definition.primary_key
    is_log = key is None and options.kind is Kind.ROWS
    shown = _properties(key, definition.buckets, definition.bucket_key, definition.options)
    names = frozenset(key or () if options.kind is Kind.ROWS else ())
    return Description(shown, names, spark_schema(definition.schema) if is_log else None)


def _definition(options: Options) -> TableDefinition:
    if (url := replica_at(options.path)) is not None:
        return replica.found(url, options)[0].definition
    with opened(options.path) as store:
        return store.runtime.definition(options.table)


def columns_of(definition: TableDefinition) -> StructType:
    """The columns of a table, as Spark writes them."""
    key = definition.primary_key or ()
    shown = spark_schema(definition.schema)
    return StructType([StructField(each.name, each.dataType, each.name not in key, each.metadata) for each in shown])


def _properties(
    key: Iterable[str] | None, buckets: int, bucket_key: Iterable[str] | None, options: TableOptions
) -> dict[str, str]:
    shown = {"provider": "kvstore", BUCKETS: str(buckets), IMAGE: options.changelog_image}
    shown[DELETE], shown[COMPRESSION] = options.delete_behavior, options.compression or "none"
    shown |= _engine_properties(options.merge_engine)
    if key is not None:
        shown[KEY] = ",".join(key)
    if bucket_key is not None:
        shown[BUCKET_KEY] = ",".join(bucket_key)
    if options.retention_ms is not None:
        shown[RETENTION] = f"{options.retention_ms} ms"
    if options.auto_increment is not None:
        shown[INCREMENT] = options.auto_increment
    return shown


def _engine_properties(stored: Any) -> dict[str, str]:
    """A merge engine as the catalog stores it, in the properties that create it."""
    match stored:
        case {"versioned": column}:
            return {ENGINE: "versioned", VERSION: column}
        case {"aggregate": functions}:
            shown = {ENGINE: "aggregation"}
            for column, function in functions.items():
                match function:
                    case {"listagg": delimiter}:
                        shown |= {f"fields.{column}.agg": "listagg", f"fields.{column}.listagg.delimiter": delimiter}
                    case _:
                        shown[f"fields.{column}.agg"] = function
            return shown
        case _:
            return {ENGINE: stored}


def create(
    path: str, name: str, columns: StructType, key: list[str] | None, given: Mapping[str, str], case_sensitive: bool
) -> None:
    """Create a table; see :func:`_new_table`.

    Raises:
        InvalidRequest, UnsupportedOperation: A property or a column is not possible. Nothing was written.
        TableExists: There is a table of that name.
    """
    table = _new_table(name, columns, key, given, case_sensitive)
    with _writable(path) as store:
        store.runtime.create_table(table)


def create_like(path: str, name: str, like: Mapping[str, str]) -> None:
    """Create a table with the columns, the key and the properties of another one.

    Args:
        like: Options that name the other one.

    Raises:
        InvalidRequest: They name its changes.
        NotAStore, NoSuchTable: There is no such store or table.
        TableExists: There is a table of that name.
    """
    options = Options.of(like)
    if options.kind is not Kind.ROWS:
        raise InvalidRequest(
            "CREATE TABLE LIKE takes a table, not its changes; use CREATE TABLE … AS SELECT for a table of changes.",
            table=like["table"],
        )
    definition = _definition(options)
    table = structs.replace(table_like(definition, definition.schema, definition.primary_key), name=table_name(name))
    with _writable(path) as store:
        store.runtime.create_table(table)


def begin_table(
    path: str,
    name: str,
    columns: StructType,
    key: list[str] | None,
    given: Mapping[str, str],
    case_sensitive: bool,
    verb: str,
) -> NewTable:
    """A table that is created together with its rows; see :func:`_new_table`.

    Args:
        verb: ``create``, ``replace``, or ``either``.

    Raises:
        InvalidRequest, UnsupportedOperation: A property or a column is not possible. Nothing was written.
        TableExists, NoSuchTable: There is a table of that name, or none.
    """
    with _writable(path) as store:
        there = None if verb == "create" else store.runtime.catalog().table(name)
        table = _new_table(name, columns, key, given, case_sensitive, there)
        replaced = replaced_by(store, table.name, creates=verb != "replace", replaces=verb != "create")
        return NewTable(str(store.path), table, replaced, replaces=verb != "create")


def _new_table(
    name: str,
    columns: StructType,
    key: list[str] | None,
    given: Mapping[str, str],
    case_sensitive: bool,
    replaced: TableDefinition | None = None,
) -> CreateTable:
    """A table as a statement defines it.

    Args:
        replaced: The table that is replaced; if the statement gives neither a key nor a property, those of this table
            stay.
        key: Columns of SQL's ``PRIMARY KEY``; None if there is none.
        case_sensitive: Whether the key and the properties name columns exactly as they are written in ``columns``.

    Raises:
        InvalidRequest: A property is unknown or wrong, a column has a type that a table does not keep, or the key is
            given twice. Nothing was written.
        UnsupportedOperation: PySpark has no Arrow type for a column. Nothing was written.
    """
    if "location" in given or given.get("provider", "kvstore").lower() not in ("kvstore", "kvstore_python"):
        raise InvalidRequest("A table of this catalog is in its store; leave USING and LOCATION out.", table=name)
    if not StringType(given.get(COLLATION, "UTF8_BINARY")).isUTF8BinaryCollation():
        raise InvalidRequest(
            "A store keeps no collation: it compares text by its bytes. Leave DEFAULT COLLATION out.",
            collation=given[COLLATION],
        )
    column_of = _column_of(columns, case_sensitive)
    wanted = _known(given, column_of)
    by_property = _names(wanted.get(KEY))
    key = [column_of(column) for column in key] if key else None
    if key is not None and by_property is not None and key != by_property:
        raise InvalidRequest(f"PRIMARY KEY and `{KEY}` differ; give one of them.", primary_key=key, given=by_property)
    key = key or by_property
    keeps = replaced is not None and key is None and not wanted
    if keeps and replaced is not None and replaced.primary_key is not None:
        key = [column_of(column) for column in replaced.primary_key]
        if lacking := sorted(set(key) - set(columns.names)):
            raise _not_kept("the new columns lack some of the key", table=name, key=key, lacking=lacking)
    fields = [
        field.with_nullable(column.nullable and field.name not in (key or ()))
        for field, column in zip(schema_to_store(columns), columns, strict=True)
    ]
    if keeps and replaced is not None:
        try:
            return table_like(replaced, pa.schema(fields), key)
        except InvalidRequest as error:
            raise _not_kept(f"they do not fit the new columns ({error})", table=name) from error
    return new_table(
        name,
        pa.schema(fields),
        key,
        buckets=_number(BUCKETS, wanted.get(BUCKETS, "1")),
        bucket_key=_names(wanted.get(BUCKET_KEY)),
        merge_engine=_engine(wanted),
        changelog_image=wanted.get(IMAGE, "full").lower(),
        auto_increment=wanted.get(INCREMENT),
        **_altered(wanted),
    )


def _not_kept(why: str, **what: object) -> InvalidRequest:
    return InvalidRequest(
        f"A table that is replaced keeps its key and its properties unless others are given, and {why}; give PRIMARY "
        f"KEY or properties, such as `{KEY}`.",
        **what,
    )


def alter(path: str, name: str, changes: Iterable[Mapping[str, Any]]) -> None:
    """Change a table, by one commit of the catalog.

    Raises:
        InvalidRequest, UnsupportedOperation: A change is not possible. Nothing was written.
        NoSuchTable: There is no such table.
    """
    added: list[pa.Field] = []
    renamed: dict[str, str] = {}
    dropped: list[str] = []
    given: dict[str, str | None] = {}
    for change in changes:
        match change["change"]:
            case "add":
                added.append(_added(change))
            case "rename":
                renamed[change["column"]] = change["to"]
            case "drop":
                dropped.append(change["column"])
            case "UpdateColumnType":
                raise UnsupportedOperation(
                    "A column keeps its type, also where another one would hold all its values; nothing was changed. "
                    "Use CREATE OR REPLACE TABLE … AS SELECT with a cast, or add a column of the other type and UPDATE "
                    "it.",
                    column=change["column"],
                )
            case "AddColumn" | "RenameColumn" | "DeleteColumn":
                raise UnsupportedOperation(
                    "A field of a struct can't be added, renamed or dropped; nothing was changed. Add a column and "
                    "UPDATE it, or use CREATE OR REPLACE TABLE … AS SELECT.",
                    field=change["column"],
                )
            case "UpdateColumnComment":
                raise UnsupportedOperation(
                    "A store keeps no comments, and nothing was changed; keep them outside of it.",
                    column=change["column"],
                )
            case "set":
                given[change["property"]] = change["value"]
            case "unset" if change["property"] == RETENTION:
                given[RETENTION] = None
            case _:
                raise _unalterable(**change)
    if "comment" in given:
        raise UnsupportedOperation(
            "A store keeps no comments, and nothing was changed; keep them outside of it.", comment=given["comment"]
        )
    if sum(map(bool, (added, renamed, dropped, given))) > 1:
        raise _unalterable(added=[field.name for field in added], dropped=dropped)
    with _writable(path) as store:
        if added:
            store.add_columns(name, added)
        elif renamed:
            store.rename_columns(name, renamed)
        elif dropped:
            store.drop_columns(name, dropped)
        elif given:
            store.alter_table(name, **_settings(given))


def _unalterable(**what: object) -> UnsupportedOperation:
    return UnsupportedOperation(
        "A table can't be changed like this; nothing was changed. A statement adds columns, drops columns, renames "
        f"one, sets properties, or unsets `{RETENTION}`; for anything else use CREATE OR REPLACE TABLE … AS SELECT.",
        properties=ALTERABLE,
        **what,
    )


def _added(change: Mapping[str, Any]) -> pa.Field:
    column = change["column"]
    if "default" in change:
        raise UnsupportedOperation(
            "Columns have no DEFAULT: a new column is null in all rows. Add it without DEFAULT, then UPDATE the rows.",
            column=column,
            default=change["default"],
        )
    if "place" in change:
        raise UnsupportedOperation(
            "New columns come after those of the table; leave FIRST and AFTER out, and SELECT the columns in the order "
            "you want.",
            column=column,
            place=change["place"],
        )
    (field,) = schema_to_store(decode_columns(change["columns"]))
    return field


def drop(path: str, name: str) -> None:
    """Drop a table.

    Raises:
        NoSuchTable: There is none of that name.
    """
    with _writable(path) as store:
        store.drop_table(name)


def create_index(path: str, name: str, index: str, columns: Sequence[str], options: Mapping[str, str]) -> None:
    """Create a secondary index of a table; see :meth:`kvstore.Store.create_index` for errors.

    Raises:
        InvalidRequest: There is an option other than `unique`, or it is not true or false. Nothing was written.
    """
    unique = options.get("unique", "false").lower()
    if set(options) - {"unique"} or unique not in ("true", "false"):
        raise InvalidRequest("An index has no option but `unique`, which is true or false.", given=dict(options))
    with _writable(path) as store:
        store.create_index(name, index, columns, unique=unique == "true")


def drop_index(path: str, name: str, index: str) -> None:
    """Drop a secondary index of a table; see :meth:`kvstore.Store.drop_index` for errors."""
    with _writable(path) as store:
        store.drop_index(name, index)


def indexes(path: str, name: str) -> dict[str, list[str]]:
    """Columns of each secondary index of a table."""
    with _writable(path) as store:
        return {index: list(columns) for index, columns in store.table(name).indexes.items()}


def rename(path: str, name: str, to: str) -> None:
    """Give a table another name."""
    with _writable(path) as store:
        store.rename_table(name, to)


def _writable(path: str) -> Store:
    path = directory_of(path)
    if (url := replica_at(path)) is not None:
        raise UnsupportedOperation(
            "A replica is read-only; change the store that ships to it. Shared tables are created and written by "
            "kvstore.spark.create_table() and write().",
            url=url,
        )
    return open_store(path)


def _settings(given: Mapping[str, str | None]) -> dict[str, Any]:
    if others := sorted(set(given) - set(ALTERABLE)):
        raise InvalidRequest("This property can't be changed.", given=others, properties=ALTERABLE)
    unset = {"retention": None} if RETENTION in given and given[RETENTION] is None else {}
    return _altered({property: value for property, value in given.items() if value is not None}) | unset


def _column_of(columns: StructType, case_sensitive: bool) -> Callable[[str], str]:
    """How the table writes the name of a column."""
    names = {} if case_sensitive else {name.lower(): name for name in columns.names}
    return lambda name: name if name in columns.names else names.get(name.lower(), name)


def _known(given: Mapping[str, str], column_of: Callable[[str], str]) -> dict[str, str]:
    """The properties that a store has, and their columns as the table writes them.

    Raises:
        InvalidRequest: One is unknown, or is given in two ways that differ.
    """
    wanted: dict[str, str] = {}
    unknown: list[str] = []
    for name, value in given.items():
        # Spark repeats what OPTIONS has under a second name.
        if name in _SPARKS or (name.startswith("option.") and given.get(name.removeprefix("option.")) == value):
            continue
        if (match := FUNCTION.fullmatch(name)) or (match := DELIMITER.fullmatch(name)):
            written = f"fields.{column_of(match[1])}{name[match.end(1) :]}"
        else:
            written = KEY if name == "primary-key" else name
            if written not in NAMES or written in _OF_COLUMNS:
                unknown.append(name)
                continue
        if written in (KEY, BUCKET_KEY, VERSION, INCREMENT):
            value = ",".join(column_of(column.strip()) for column in value.split(","))
        if wanted.setdefault(written, value) != value:
            raise InvalidRequest(f"`{written}` is given twice; give one of them.", given=[wanted[written], value])
    if unknown:
        raise InvalidRequest("Unknown property of a table.", unknown=sorted(unknown), properties=NAMES)
    return wanted


def _altered(given: Mapping[str, str]) -> dict[str, Any]:
    """Arguments for the properties that can be changed later, too."""
    settings: dict[str, Any] = {}
    if DELETE in given:
        settings["delete_behavior"] = given[DELETE].lower()
    if COMPRESSION in given:
        name = given[COMPRESSION].lower()
        if name not in _COMPRESSIONS:
            raise InvalidRequest(f"`{COMPRESSION}` is lz4, zstd or none.", given=given[COMPRESSION])
        settings["compression"] = _COMPRESSIONS[name]
    if RETENTION in given:
        match = re.fullmatch(r"\s*(\d+)\s*(\w+?)\s*", given[RETENTION])
        unit = match and _UNITS.get(match[2].lower())
        if match is None or unit is None:
            raise InvalidRequest(f"`{RETENTION}` is a number and a unit, such as `7 d`.", given=given[RETENTION])
        try:
            settings["retention"] = dt.timedelta(**{unit: int(match[1])})
        except OverflowError as error:
            raise InvalidRequest(
                f"`{RETENTION}` is longer than any time; leave it out to keep all changes.", given=given[RETENTION]
            ) from error
    return settings


def _engine(given: Mapping[str, str]) -> Any:
    """The merge engine, for :func:`new_table`.

    Raises:
        InvalidRequest: There is none of that name, or a property belongs to another one.
    """
    name = given.get(ENGINE, "last_row").lower()
    functions = {match[1]: value for each, value in given.items() if (match := FUNCTION.fullmatch(each))}
    delimiters = {match[1]: value for each, value in given.items() if (match := DELIMITER.fullmatch(each))}
    if name not in ("last_row", "first_row", "versioned", "aggregation"):
        raise InvalidRequest(f"`{ENGINE}` is last_row, first_row, versioned or aggregation.", given=given[ENGINE])
    if (functions or delimiters) and name != "aggregation":
        raise InvalidRequest(
            f"Functions of columns are for the engine `aggregation`; give `{ENGINE}` = `aggregation`, too, or leave "
            "them out.",
            columns=sorted({*functions, *delimiters}),
        )
    if (VERSION in given) != (name == "versioned"):
        raise InvalidRequest(
            f"The engine `versioned` and the property `{VERSION}` go together; give both or neither.", engine=name
        )
    if name == "versioned":
        return Versioned(given[VERSION])
    if name == "aggregation":
        if others := sorted(column for column in delimiters if functions.get(column) not in ("listagg", "string_agg")):
            raise InvalidRequest("A delimiter is for the function `listagg`; give both or neither.", columns=others)
        return Aggregate(functions | {column: listagg(delimiter) for column, delimiter in delimiters.items()})
    return name


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidRequest(f"`{name}` is a number.", given=text) from error


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
