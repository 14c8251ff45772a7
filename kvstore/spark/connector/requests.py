"""Answers to the connector: what a query reads is planned and read as by the Python source, by the same code.

An error of a store is one line: its class, what happened and what to do.
"""

from __future__ import annotations

import json

from pyspark.sql.types import StructType

from kvstore.errors import StoreError
from kvstore.spark.connector.messages import Message, Messages
from kvstore.spark.connector.plans import decode_read, decode_task, encode_read, encode_task
from kvstore.spark.options import Options
from kvstore.spark.read.batch import KvStoreReader, Pinned
from kvstore.spark.read.replica import KvStoreReplicaReader, PinnedReplica, read_replica
from kvstore.spark.read.splits import ReadTask, read
from kvstore.spark.source import KvStoreSource
from kvstore.spark.types import arrow_schema


def answer(request: Message, messages: Messages) -> None:
    """Answer a request; an error of the store is the answer, too.

    Raises:
        Broken: The other end has closed.
    """
    try:
        match request["do"]:
            case "load":
                messages.send(_load(request))
            case "plan":
                messages.send(_plan(request))
            case "read":
                _read(request, messages)
    except StoreError as error:
        messages.send({"error": f"{type(error).__module__}.{type(error).__name__}: {error}"})


def _load(request: Message) -> Message:
    """Columns to choose from, and the pinned read; none if only a stream can begin where the options say."""
    source = KvStoreSource(request["options"])
    columns, pinned = source.pin(_columns(request["columns"]) if "columns" in request else None)
    return {"columns": columns.json(), "pinned": None if pinned is None else encode_read(pinned)}


def _plan(request: Message) -> Message:
    """The tasks of a query."""
    options, columns = Options.of(request["options"]), _columns(request["columns"])
    options.check_use("read")
    if request.get("pinned") is None:
        _, pinned = KvStoreSource(request["options"]).pin(columns)
    else:
        pinned = decode_read(request["pinned"])
    reader = _reader(pinned, columns, options)
    return {"tasks": [encode_task(task) for task in reader.partitions()]}


def _reader(
    pinned: Pinned | PinnedReplica | None, columns: StructType, options: Options
) -> KvStoreReader | KvStoreReplicaReader:
    if isinstance(pinned, PinnedReplica):
        return KvStoreReplicaReader(pinned, columns, options)
    assert pinned is not None
    return KvStoreReader(pinned, columns, options)


def _read(request: Message, messages: Messages) -> None:
    """The columns of a task: a message, an Arrow stream, and a message that says that it is complete."""
    task = decode_task(request["task"])
    target = arrow_schema(_columns(request["columns"]))
    messages.send({})
    messages.send_batches(target, read(task, target) if isinstance(task, ReadTask) else read_replica(task, target))
    messages.send({})


def _columns(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))
