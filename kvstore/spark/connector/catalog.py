"""A store as a catalog of Spark: its tables, their properties, and changes of them.

Properties have the names that Fluss gives them; what Spark itself adds to a table's properties is left alone.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from kvstore import Aggregate, Versioned
from kvstore.errors import InvalidRequest, UnsupportedOperation
from kvstore.replica.client import ObjectStore
from kvstore.replica.location import replica_at
from kvstore.shared.in_place import SharedCatalog
from kvstore.shared.table import has_shared_tables
from kvstore.spark.options import Kind, Options, directory_of
from kvstore.spark.read.place import opened
from kvstore.spark.read.replica import found_replica
from kvstore.spark.types import arrow_schema, spark_schema
from kvstore.store.store import Store, open_store
from logformat.catalog.edits import TableOptions

KEY, BUCKETS, BUCKET_KEY = "primary.key", "bucket.num", "bucket.key"
ENGINE, VERSION = "table.merge-engine", "table.merge-engine.versioned.ver-column"
FUNCTION = re.compile("fields[.](.+)[.]agg")
IMAGE, DELETE, RETENTION = "table.changelog.image", "table.delete.behavior", "table.log.ttl"
COMPRESSION, INCREMENT = "table.log.arrow.compression.type", "auto-increment.fields"
ALTERABLE = (DELETE, RETENTION, COMPRESSION)
NAMES = (KEY, BUCKETS, BUCKET_KEY, ENGINE, VERSION, "fields.<column>.agg", IMAGE, *ALTERABLE, INCREMENT)
_SPARKS = frozenset(("provider", "owner", "comment", "collation", "location", "external", "is_managed_location"))
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

    def columns(self, found: StructType) -> StructType:
        """The columns of the source, without nulls in those of the key: statements name rows by it."""
        fields = [StructField(each.name, each.dataType, each.name not in self.key, each.metadata) for each in found]
        return StructType(fields)


def described(given: Mapping[str, str]) -> Description:
    """What the catalog shows of a table.

    Raises:
        NotAStore, NoSuchTable: There is no such store or table.
    """
    options = Options.of(given)
    if (url := replica_at(options.path)) is not None:
        definition = found_replica(url, options)[0].definition
    else:
        with opened(options.path) as store:
            definition = store.runtime.definition(options.table)
    key = definition.primary_key
    is_log = key is None and options.kind is Kind.ROWS
    shown = _properties(key, definition.buckets, definition.bucket_key, definition.options)
    names = frozenset(key or () if options.kind is Kind.ROWS else ())
    return Description(shown, names, spark_schema(definition.schema) if is_log else None)


def _properties(
    key: Iterable[str] | None, buckets: int, bucket_key: Iterable[str] | None, options: TableOptions
) -> dict[str, str]:
    shown = {"provider": "kvstore", BUCKETS: str(buckets), IMAGE: options.changelog_image}
    shown[DELETE], shown[COMPRESSION] = options.delete_behavior, options.compression or "none"
    engine = options.merge_engine
    shown[ENGINE] = engine if isinstance(engine, str) else json.dumps(engine)
    if key is not None:
        shown[KEY] = ",".join(key)
    if bucket_key is not None:
        shown[BUCKET_KEY] = ",".join(bucket_key)
    if options.retention_ms is not None:
        shown[RETENTION] = f"{options.retention_ms} ms"
    if options.auto_increment is not None:
        shown[INCREMENT] = options.auto_increment
    return shown


def create(path: str, name: str, columns: StructType, key: list[str] | None, given: Mapping[str, str]) -> None:
    """Create a table.

    Args:
        key: Columns of SQL's ``PRIMARY KEY``; None if there is none.

    Raises:
        InvalidRequest: A property is unknown or wrong, or the key is given twice. Nothing was written.
        TableExists: There is a table of that name.
    """
    if "location" in given or given.get("provider", "kvstore").lower() not in ("kvstore", "kvstore_python"):
        raise InvalidRequest("A table of this catalog is in its store; leave USING and LOCATION out.", table=name)
    wanted = _known({**given})
    by_property = _names(wanted.get(KEY))
    if key is not None and by_property is not None and key != by_property:
        raise InvalidRequest(f"PRIMARY KEY and `{KEY}` differ; give one of them.", primary_key=key, given=by_property)
    key = key or by_property
    fields = [
        field.with_nullable(column.nullable and field.name not in (key or ()))
        for field, column in zip(arrow_schema(columns), columns, strict=True)
    ]
    with _writable(path) as store:
        store.create_table(
            name,
            pa.schema(fields),
            key,
            buckets=_number(BUCKETS, wanted.get(BUCKETS, "1")),
            bucket_key=_names(wanted.get(BUCKET_KEY)),
            merge_engine=_engine(wanted),
            changelog_image=wanted.get(IMAGE, "full").lower(),  # type: ignore[arg-type] # create_table checks it
            auto_increment=wanted.get(INCREMENT),
            **_altered(wanted),
        )


def alter(path: str, name: str, changes: Iterable[Mapping[str, Any]]) -> None:
    """Change a table: each change is one commit of the catalog, in their order.

    Raises:
        InvalidRequest, UnsupportedOperation: A change is not possible. Those before it were made.
        NoSuchTable: There is no such table.
    """
    with _writable(path) as store:
        for change in changes:
            match change["change"]:
                case "add":
                    (field,) = arrow_schema(StructType.fromJson(json.loads(change["columns"])))
                    store.add_columns(name, [field])
                case "rename":
                    store.rename_columns(name, {change["column"]: change["to"]})
                case "drop":
                    store.drop_columns(name, [change["column"]])
                case "set":
                    _set(store, name, {change["property"]: change["value"]})
                case "unset" if change["property"] == RETENTION:
                    store.alter_table(name, retention=None)
                case _:
                    raise UnsupportedOperation(
                        "A table can't be changed like this; ALTER TABLE adds, renames and drops columns, and sets "
                        "properties.",
                        properties=ALTERABLE,
                        **change,
                    )


def drop(path: str, name: str) -> bool:
    """Drop a table; false if there is none."""
    with _writable(path) as store:
        if name not in store:
            return False
        store.drop_table(name)
        return True


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


def _set(store: Store, name: str, given: Mapping[str, str]) -> None:
    if others := sorted(set(given) - set(ALTERABLE)):
        raise InvalidRequest("This property can't be changed.", given=others, properties=ALTERABLE)
    store.alter_table(name, **_altered(given))


def _known(given: Mapping[str, str]) -> dict[str, str]:
    wanted = {name.replace("primary-key", KEY): value for name, value in given.items() if name not in _SPARKS}
    known = {name for name in wanted if name in NAMES or FUNCTION.fullmatch(name) or name.startswith("option.")}
    if unknown := sorted(set(wanted) - known):
        raise InvalidRequest("Unknown property of a table.", unknown=unknown, properties=NAMES)
    return wanted


def _altered(given: Mapping[str, str]) -> dict[str, Any]:
    """Arguments for the properties that can be changed later, too."""
    found: dict[str, Any] = {}
    if DELETE in given:
        found["delete_behavior"] = given[DELETE].lower()
    if COMPRESSION in given:
        name = given[COMPRESSION].lower()
        if name not in _COMPRESSIONS:
            raise InvalidRequest(f"`{COMPRESSION}` is lz4, zstd or none.", given=given[COMPRESSION])
        found["compression"] = _COMPRESSIONS[name]
    if RETENTION in given:
        match = re.fullmatch(r"\s*(\d+)\s*(\w+?)\s*", given[RETENTION])
        unit = match and _UNITS.get(match[2].lower())
        if match is None or unit is None:
            raise InvalidRequest(f"`{RETENTION}` is a number and a unit, such as `7 d`.", given=given[RETENTION])
        found["retention"] = dt.timedelta(**{unit: int(match[1])})
    return found


def _engine(given: Mapping[str, str]) -> Any:
    engine = given.get(ENGINE, "last_row").lower()
    functions = {match[1]: value for name, value in given.items() if (match := FUNCTION.fullmatch(name))}
    if engine == "versioned":
        if VERSION not in given:
            raise InvalidRequest(f"The engine `versioned` needs the property `{VERSION}`.")
        return Versioned(given[VERSION])
    if engine == "aggregation":
        return Aggregate(functions)
    return engine


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidRequest(f"`{name}` is a number.", given=text) from error


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
