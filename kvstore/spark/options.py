"""Options of ``format("kvstore")``: what they may say (docs/spark.md). What is not known is refused, by its name."""

from __future__ import annotations

import datetime as dt
import json
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from kvstore.arguments import printable, url_without_credentials
from kvstore.commit.consumers import consumer_name
from kvstore.commit.named_writers import NAME_BYTES_MAX
from kvstore.errors import InvalidRequest, SchemaMismatch
from logformat.ids import OFFSET_MAX

_ALL = ("path", "table")
_READS = (
    *("columns", "asOf", "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "failOnDataLoss", "pushFilters", "consumer"),
)
_WRITES = ("txnId",)
_STREAM_WRITES = ("writer", "takeover")
_SPARKS = ("checkpointLocation", "queryName")
"""What Spark hands to the sink of a stream besides."""
_TRANSACTION = "spark txn "
NAMES = (*_ALL, *_READS, *_WRITES, *_STREAM_WRITES)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Word = Literal["full", "earliest", "latest"]
Place = Word | dict[int, int] | dt.datetime
End = Literal["latest"] | dict[int, int] | dt.datetime


class Kind(StrEnum):
    """What is read of a table; its name, and what follows it after a ``$``."""

    ROWS = ""
    CHANGELOG = "changelog"
    BINLOG = "binlog"


@dataclass(frozen=True)
class Options:
    """What the options say.

    Attributes:
        start, end, as_of: None where nothing is said.
        offsets_max: How many offsets one batch of a stream may take.
        fail_on_data_loss: Whether it is an error if changes that are to be read have expired.
        push_filters: Whether filters that Spark pushes down are made use of; see ``batch.PushFilters``.
        consumer: Under which name a stream says how far it is; None if it does not.
        transaction: Name of the writer of a batch write that takes place once.
        writer: Under which name a stream writes; None for one of its own.
        takeover: Whether another query may have written under the name.
        given: Names of those that say something, in lower case.
    """

    path: str
    table: str
    kind: Kind
    columns: tuple[str, ...] | None
    start: Place | None
    end: End | None
    as_of: int | dict[int, int] | dt.datetime | None
    offsets_max: int | None
    fail_on_data_loss: bool
    push_filters: bool
    consumer: str | None
    transaction: str | None
    writer: str | None
    takeover: bool
    given: tuple[str, ...]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Options as Spark gives them; their names in any case.

        Raises:
            InvalidRequest: One is unknown, missing, says nothing known, or does not go with another.
            SchemaMismatch: A column is named twice.
        """
        options = {name.lower(): value for name, value in given.items()}
        if "provider" in options:
            raise InvalidRequest(
                "Spark does not hand the options of a table in its catalog to a Python data source when it is read or "
                "written; CREATE TEMPORARY VIEW … USING kvstore instead."
            )
        if unknown := sorted(set(options) - {name.lower() for name in (*NAMES, *_SPARKS)}):
            raise InvalidRequest("There is no such option.", unknown=unknown, options=NAMES)
        for name in ("path", "table"):
            if not options.get(name):
                raise InvalidRequest(f"Option `{name}` is missing.", given=sorted(options))
        table, kind = _table(options["table"])
        both = "Options `{0}Offsets` and `{0}Timestamp` say the same; leave one out."
        for side in ("starting", "ending"):
            if f"{side}offsets" in options and f"{side}timestamp" in options:
                raise InvalidRequest(both.format(side))
        told = cls(
            path=_directory(options["path"]),
            table=table,
            kind=kind,
            columns=_columns(options.get("columns")),
            start=_place(options, "startingOffsets", "startingTimestamp", ("full", "earliest", "latest")),
            end=_end(options),
            as_of=_as_of(options.get("asof")),
            offsets_max=_count(options.get("maxoffsetspertrigger")),
            fail_on_data_loss=_flag("failOnDataLoss", options.get("failondataloss", "true")),
            push_filters=_flag("pushFilters", options.get("pushfilters", "false")),
            consumer=consumer_name(options["consumer"]) if "consumer" in options else None,
            transaction=_name("txnId", options.get("txnid"), _TRANSACTION),
            writer=_name("writer", options.get("writer")),
            takeover=_flag("takeover", options.get("takeover", "false")),
            given=tuple(options),
        )
        if kind is Kind.ROWS and (told.start is not None or told.end is not None):
            raise InvalidRequest(
                "Where to start and to end is for a changelog: `<table>$changelog`; rows of a moment are `asOf`."
            )
        if kind is not Kind.ROWS and told.as_of is not None:
            raise InvalidRequest("Option `asOf` is for a table's rows; a changelog ends at `endingOffsets`.")
        return told

    def check_use(self, use: Literal["read", "batch write", "stream write"]) -> None:
        """Refuse options that are for something else.

        Raises:
            InvalidRequest: There is one; or what is to be written is no table's rows.
        """
        names = {"read": _READS, "batch write": _WRITES, "stream write": _STREAM_WRITES}[use]
        known = {name.lower() for name in (*_ALL, *names, *(_SPARKS if use == "stream write" else ()))}
        if others := sorted(set(self.given) - known):
            raise InvalidRequest(
                f"This option says nothing of a {use}; leave it out.", unknown=others, options=(*_ALL, *names)
            )
        if self.takeover and self.writer is None:
            raise InvalidRequest("Option `takeover` is about the name in option `writer`; give that too.")
        if use != "read" and self.kind is not Kind.ROWS:
            raise InvalidRequest("Rows are written to a table, not to its changes; give option `table` its name only.")


def _name(option: str, text: str | None, prefix: str = "") -> str | None:
    """Name of a writer."""
    if text is None:
        return None
    return prefix + printable(option, text, NAME_BYTES_MAX - len(prefix))


def _table(text: str) -> tuple[str, Kind]:
    """A table's name, and what is read of it."""
    name, dollar, kind = text.partition("$")
    if bool(dollar) != (kind in (Kind.CHANGELOG, Kind.BINLOG)):
        raise InvalidRequest(
            "Option `table` is `name` for a table's rows, or `name$changelog` or `name$binlog` for its changes.",
            given=text,
        )
    return name, Kind(kind)


def _directory(path: str) -> str:
    """A path, which may be given as a URI of this machine; or another URL, which may be that of a replica.

    Nothing in it is decoded, as in Spark's own sources.
    """
    uri = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)(?://([^/]*))?(.*)", path, re.DOTALL)
    if uri is None:
        return path
    scheme, host, directory = uri.groups()
    if scheme.lower() != "file" and host:
        return url_without_credentials("path", path)
    if scheme.lower() != "file" or host not in (None, "", "localhost"):
        raise InvalidRequest(
            "A store is on a local disk; give `path` a directory, or file:///directory; or, to read a replica, its "
            "URL, such as s3://bucket/path.",
            path=path,
        )
    return "/" + directory.lstrip("/")


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    columns = tuple(column.strip() for column in text.split(","))
    if len(set(columns)) < len(columns):
        raise SchemaMismatch("Option `columns` names a column twice; name each once.", columns=columns)
    return columns


def _place(options: Mapping[str, str], offsets: str, time: str, words: tuple[Word, ...]) -> Place | None:
    if (moment := options.get(time.lower())) is not None:
        try:
            return EPOCH + dt.timedelta(milliseconds=int(moment))
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"Option `{time}` is a time in milliseconds since 1970-01-01 UTC.", given=moment
            ) from error
    if (text := options.get(offsets.lower())) is None:
        return None
    for word in words:
        if text == word:
            return word
    try:
        return _offsets(json.loads(text))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f'Option `{offsets}` is {", ".join(words)}, or JSON from bucket to offset: {{"0": 17}}.', given=text
        ) from error


def _end(options: Mapping[str, str]) -> End | None:
    found = _place(options, "endingOffsets", "endingTimestamp", ("latest",))
    return "latest" if isinstance(found, str) else found


def _as_of(text: str | None) -> int | dict[int, int] | dt.datetime | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
        return found if type(found) is int else _offsets(found)
    except (ValueError, AttributeError, TypeError, RecursionError):
        pass
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidRequest(
            'Option `asOf` is an offset, JSON from bucket to offset: {"0": 17}, or a time with its zone.', given=text
        )
    return time


def _offsets(found: Any) -> dict[int, int]:
    return {int(bucket): operator.index(offset) for bucket, offset in found.items()}


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 0 < count <= OFFSET_MAX:
        raise InvalidRequest("Option `maxOffsetsPerTrigger` is a number above 0.", given=text)
    return count


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"Option `{option}` is true or false.", given=text)
    return text.lower() == "true"
