"""Answers to the connector: what a query reads is planned and read as by the Python source, by the same code.

An error of a store is one line: its class, what happened and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow.compute as pc
from pyspark.sql.types import StructType

from kvstore.errors import InvalidRequest, StoreError
from kvstore.read.scan import first_rows
from kvstore.spark.connector import catalog, changes, writes
from kvstore.spark.connector.few import few_rows
from kvstore.spark.connector.filters import filters_of
from kvstore.spark.connector.messages import Broken, Message, Messages
from kvstore.spark.connector.plans import decode, decode_schema, encode, encode_schema
from kvstore.spark.connector.stream import follow
from kvstore.spark.options import Options
from kvstore.spark.read.batch import KvStoreReader
from kvstore.spark.read.filters import expression_of
from kvstore.spark.read.sources import open_meanwhile, read, reads_of
from kvstore.spark.read.tasks import Pinned, ReadTask
from kvstore.spark.source import KvStoreSource
from kvstore.spark.types import arrow_schema, decode_columns, spark_schema

ENDS: Message = {"ends": True}
"""Part of the last answer of a conversation."""


def answer(request: Message, messages: Messages, is_last: Callable[[], bool] = lambda: False) -> None:
    """Answer a request; an error of the store is the answer, too.

    Args:
        is_last: Whether the other end shall close once it has the answer.

    Raises:
        Broken: The other end has closed.
        Exception: Any other error, after it was answered: it is a defect, and its traceback is for the log.
    """
    try:
        _answer(request, messages, is_last)
    except Broken:
        raise
    except Exception as error:
        refusal = _refusal(error, " (its traceback is in the standard error of Spark's process on this host)")
        with suppress(Broken):
            messages.send(refusal | ENDS)
        raise


def _answer(request: Message, messages: Messages, is_last: Callable[[], bool]) -> None:
    def run() -> Message:
        match request["do"]:
            case "load":
                with open_meanwhile(Options.of(request["options"])):
                    return _load(request)
            case "catalog":
                return _catalog(request)
            case "plan":
                with open_meanwhile(Options.of(request["options"])):
                    return _plan(request)
            case "aggregate":
                return _aggregate(request)
            case "stream":
                follow(request, decode_columns(request["columns"]), messages, answered)
            case "see":
                _see(request)
            case "read":
                _read(request, messages)
            case "changes":
                return changes.load(request)
            case "fill":
                writes.check_fitting(request, decode_columns(request["columns"]))
            case "show":
                writes.show(request)
            case "insert":
                return writes.begin(request, decode_columns(request["columns"]))
            case "statement":
                return writes.begin_statement(request)
            case "truncate":
                writes.truncate(request)
            case "stage":
                return writes.stage(request, messages)
            case "commit":
                return writes.commit(request)
            case "abort":
                return writes.abort(request)
        return {}

    def answered(run: Callable[[], Message], more: Callable[[], Message] = dict) -> None:
        try:
            reply = run()
        except StoreError as error:
            reply = _refusal(error)
        messages.send(reply | more())

    answered(run, lambda: ENDS if is_last() else {})


def _refusal(error: Exception, more: str = "") -> Message:
    return {"error": f"{type(error).__module__}.{type(error).__name__}: {error}{more}"}


def _load(request: Message) -> Message:
    """Columns to choose from, and the pinned read; none if only a stream can begin where the options say."""
    reply: Message = {}
    described = catalog.described(request["options"]) if "properties" in request else None
    if described is not None:
        reply["properties"] = described.properties
        if described.log_columns is not None:
            return reply | {"columns": described.log_columns.json()}
    source = KvStoreSource(request["options"])
    # A catalog loads a table for each DESCRIBE and INSERT, too.
    loaded = source.load(keep_log=described is None)
    columns = decode_columns(request["columns"]) if "columns" in request else None
    if columns is not None:
        source.pin(columns)
    shown = spark_schema(loaded.columns) if columns is None else columns
    reply["columns"] = (shown if described is None else described.columns(shown)).json()
    if loaded.pinned is not None:
        reply["pinned"] = encode(loaded.pinned)
    if loaded.rows_max is not None:
        reply["rows"] = loaded.rows_max
    if loaded.stored_bytes is not None:
        reply["bytes"] = loaded.stored_bytes
    if loaded.key:
        reply["lookup"] = list(loaded.key)
    if loaded.bucketed is not None:
        reply["bucketed"] = {"buckets": loaded.bucketed[0], "column": loaded.bucketed[1]}
    return reply


def _catalog(request: Message) -> Message:
    """What the catalog of a store has, or a change of it."""
    path, table = request["path"], request.get("table", "")
    match request["to"]:
        case "list":
            return {"tables": catalog.tables(path)}
        case "create":
            columns, case_sensitive = decode_columns(request["columns"]), request["caseSensitive"]
            catalog.create(path, table, columns, request.get("key"), request["properties"], case_sensitive)
        case "like":
            catalog.create_like(path, table, request["like"])
        case "alter":
            catalog.alter(path, table, request["changes"])
        case "begin":
            columns, case_sensitive = decode_columns(request["columns"]), request["caseSensitive"]
            key, properties, verb = request.get("key"), request["properties"], request["verb"]
            new = catalog.begin_table(path, table, columns, key, properties, case_sensitive, verb)
            return {"newTable": encode(new), "columns": catalog.columns_of(new.definition).json()}
        case "createIndex":
            catalog.create_index(path, table, request["index"], request["columns"], request["options"])
        case "dropIndex":
            catalog.drop_index(path, table, request["index"])
        case "indexes":
            return {"indexes": catalog.indexes(path, table)}
        case "rename":
            catalog.rename(path, table, request["name"])
        case "drop":
            catalog.drop(path, table)
    return {}


def _plan(request: Message) -> Message:
    """The tasks of a query, and the filter that they use."""
    reader = _reader(request, decode_columns(request["columns"]))
    reader.cores = request["cores"]
    if filters := filters_of(request["filters"]):
        reader.use_filters(filters)
    reader.by_bucket = request.get("byBucket", False)
    tasks = reader.partitions()
    reply: Message = {"tasks": [encode(task) for task in tasks]}
    if reader.by_bucket:
        reply["buckets"] = [task.pieces[0].bucket for task in tasks]
    if reader.stored is not None and not reader.looks_up:
        reply["filter"] = {"filters": request["filters"], "stored": encode_schema(reader.stored)}
    if request["takesRows"] and (rows := few_rows(tasks, decode_columns(request["columns"]))) is not None:
        reply["rows"] = rows
    return reply


def _aggregate(request: Message) -> Message:
    """Values of aggregates, if they are known without reading rows."""
    reader = _reader(request, StructType())
    wanted = [(each["name"], each.get("column")) for each in request["of"]]
    return {"values": reader.aggregates(wanted)}


def _reader(request: Message, columns: StructType) -> KvStoreReader:
    options = Options.of(request["options"])
    options.check_use("read")
    text = request.get("pinned")
    pinned = KvStoreSource(request["options"]).pin(columns) if text is None else decode(text, Pinned)
    if options.filter != pinned.address.filter:
        raise InvalidRequest(
            "Option `filter` is for a changelog, `<table>$changelog`; CHANGES has the changes of all rows.",
            filter=options.filter,
        )
    return KvStoreReader(pinned, columns, options)


def _see(request: Message) -> None:
    """Verify that this host has the store of a task."""
    with reads_of(decode(request["task"], ReadTask).address):
        pass


def _read(request: Message, messages: Messages) -> None:
    """The columns of a task: a message and an Arrow stream; a message follows that says that it is complete."""
    target = arrow_schema(decode_columns(request["columns"]))
    filter = _expression(request["filter"]) if "filter" in request else None
    batches = read(decode(request["task"], ReadTask), target, filter)
    if "limit" in request:
        batches = first_rows(batches, request["limit"])
    messages.send({})
    messages.send_batches(target, batches)


def _expression(given: Message) -> pc.Expression | None:
    return expression_of(filters_of(given["filters"]), decode_schema(given["stored"]))
