"""Writes of the connector: the driver begins a job and ends it, and each task sends its rows to be staged between.

They are staged and committed as by the Python source, by the same code.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.types import StructType

from kvstore.errors import InvalidRequest, StoreError, UnsupportedOperation
from kvstore.spark.connector.filters import filters_of
from kvstore.spark.connector.messages import Message, Messages
from kvstore.spark.connector.plans import decode, decode_schema, encode, encode_schema
from kvstore.spark.options import Options
from kvstore.spark.read.filters import exact_expression_of
from kvstore.spark.read.store import StoreReads
from kvstore.spark.read.tasks import Pinned
from kvstore.spark.source import KvStoreSource
from kvstore.spark.types import arrow_schema
from kvstore.spark.write.job import WriteJob
from kvstore.spark.write.new_table import NewTable
from kvstore.spark.write.staged import Staged
from kvstore.spark.write.statement import Statement, check_statement
from logformat.rows.intake import empty


def begin(request: Message, columns: StructType) -> Message:
    """The job of an INSERT; of an INSERT OVERWRITE if the request says ``replaces``, perhaps by a condition.

    Raises:
        UnsupportedOperation: The rows that pass the condition can't be told from the others here.
    """
    writer = KvStoreSource(request["options"]).writer(columns, request["replaces"])
    reply: Message = {"job": encode(writer.job)}
    if "condition" in request:
        schema = writer.job.address.stored()
        exact_expression_of(filters_of(request["condition"]), schema, len(request["condition"]))
        reply["where"] = {"filters": request["condition"], "stored": encode_schema(schema)}
    return reply


def begin_statement(request: Message) -> Message:
    """The job of an UPDATE, a DELETE or a MERGE, and the columns by which it names rows."""
    options = Options.of(request["options"])
    options.check_use("batch write")
    if options.transaction is not None:
        raise InvalidRequest(
            "Option `txnId` is only for INSERT; leave it out. If you do not know whether a statement was applied, look "
            "at its rows before you run it again.",
            command=request["command"],
        )
    KvStoreSource(request["options"]).check_writable()
    if "pinned" not in request:
        raise UnsupportedOperation(
            f"A log table takes INSERT only: it has no key by which {request['command']} could find a row.",
            table=options.table,
        )
    read = _read(request)
    with read.address.open() as table:
        check_statement(table, request["command"])
        key = list(table.primary_key or ())
        StoreReads(read.address, table).hold(read, until_commit=True)
    return {"job": encode(WriteJob(read.address, statement=_statement(request))), "key": key}


def truncate(request: Message) -> None:
    """Delete all rows, as of the commit."""
    job = decode(begin_statement(request)["job"], WriteJob)
    replace(job, statement=None, replaces=True).commit([])


def check_fitting(request: Message, columns: StructType) -> None:
    """Refuse rows that are not those of a new table, and reads of the replaced one that lack changes.

    Raises:
        InvalidRequest: They do not fit.
        Conflict: The query reads the table that is replaced, as it was earlier.
    """
    table = _new_table(request)
    table.fitting(empty(arrow_schema(columns)))
    for read in request["reads"]:
        if table.replaced is not None:
            table.replaced.check_read(decode(read, Pinned))


def show(request: Message) -> None:
    """Show a new table, with the rows that the tasks have staged."""
    _new_table(request).commit(_staged(request))


def stage(request: Message, messages: Messages) -> Message:
    """Stage the rows of one task, an Arrow stream after the request."""
    batches = messages.receive_batches()
    of = _new_table(request) if "newTable" in request else _job(request)
    try:
        staged = of.stage(batches, request["partition"], request["attempt"], None)
    except StoreError:
        for _ in batches:  # the other end hears nothing before it has sent all
            pass
        raise
    return {"staged": encode(staged)}


def commit(request: Message) -> Message:
    """Apply what the tasks have staged; a MERGE that only inserts says what it has read, too."""
    job = _job(request)
    if "pinned" in request:
        job = replace(job, statement=_statement(request))
    where = None
    if "where" in request:
        filters = request["where"]["filters"]
        where = exact_expression_of(filters_of(filters), decode_schema(request["where"]["stored"]), len(filters))
    job.commit(_staged(request), where=where)
    return {}


def abort(request: Message) -> Message:
    """Remove what the tasks have staged."""
    (_new_table(request) if "newTable" in request else _job(request)).remove(_staged(request))
    return {}


def _read(request: Message) -> Pinned:
    return decode(request["pinned"], Pinned)


def _statement(request: Message) -> Statement:
    return Statement({each.bucket: each.end for each in _read(request).ranges})


def _new_table(request: Message) -> NewTable:
    return decode(request["newTable"], NewTable)


def _job(request: Message) -> WriteJob:
    return decode(request["job"], WriteJob)


def _staged(request: Message) -> list[Staged]:
    return [decode(text, Staged) for text in request["staged"]]
