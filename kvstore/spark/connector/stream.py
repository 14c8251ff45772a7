"""A stream of the connector: one conversation with the reader of streams of the Python source, with its offsets."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from kvstore.spark.connector.messages import Message, Messages
from kvstore.spark.connector.plans import encode
from kvstore.spark.read.stream import KvStoreStreamReader
from kvstore.spark.source import KvStoreSource


def follow(
    request: Message, columns: StructType, messages: Messages, answered: Callable[[Callable[[], Message]], None]
) -> None:
    """Serve one stream until the other end closes.

    Args:
        answered: Sends what a function returns, or the error of a store that it raises.

    Raises:
        StoreError: The options do not apply to a stream.
        Broken: The other end has closed.
    """
    reader = KvStoreSource(request["options"]).streamReader(columns)
    try:
        limit = reader.getDefaultReadLimit()
        messages.send({"limit": limit.max_rows if isinstance(limit, ReadMaxRows) else None})
        while True:
            answered(partial(_answer, reader, messages.receive()))
    finally:
        reader.stop()


def _answer(reader: KvStoreStreamReader, call: Message) -> Message:
    match call["call"]:
        case "initial":
            return {"offset": json.dumps(reader.initialOffset())}
        case "latest":
            limit = ReadMaxRows(call["limit"]) if "limit" in call else ReadAllAvailable()
            return {"offset": json.dumps(reader.latestOffset(json.loads(call["start"]), limit))}
        case "report":
            return {"offset": json.dumps(reader.reportLatestOffset())}
        case "metrics":
            return {"metrics": reader.metrics(json.loads(call["end"]))}
        case "plan":
            reader.cores = call["cores"]
            tasks = reader.partitions(json.loads(call["start"]), json.loads(call["end"]))
            return {"tasks": [encode(task) for task in tasks]}
        case "commit":
            reader.commit(json.loads(call["end"]))
        case "availableNow":
            reader.prepareForTriggerAvailableNow()
    return {}
