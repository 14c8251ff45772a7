"""Options of ``format("kvstore")`` and their values (docs/spark.md). Unknown options are refused by name."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from kvstore.arguments import bound_of, offsets_by_bucket, printable, url_without_credentials
from kvstore.commit.consumers import consumer_name
from kvstore.commit.named_writers import NAME_BYTES_MAX, TRANSACTION
from kvstore.errors import InvalidRequest, SchemaMismatch
from logformat.ids import OFFSET_MAX

_ALL = ("path", "table")
_READS = (
    *("columns", "asOf", "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "failOnDataLoss", "pushFilters", "consumer", "filter"),
)
_WRITES = ("txnId",)
_STREAM_WRITES = ("writer", "takeover")
_SPARKS = ("checkpointLocation", "queryName")
"""Options that Spark adds for the sink of a stream."""
NAMES = (*_ALL, *_READS, *_WRITES, *_STREAM_WRITES)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Word = Literal["full", "earliest", "latest"]
Place = Word | dict[int, int] | dt.datetime
End = Literal["latest"] | dict[int, int] | dt.datetime


class Kind(StrEnum):
    """The view of a table that is read: its rows, or the suffix after ``$`` in the option ``table``.

    ``NET`` is the changelog with one net change a key and commit, for ``CHANGES``; no option selects it.
    """

    ROWS = ""
    CHANGELOG = "changelog"
    BINLOG = "binlog"
    NET = "net"


@dataclass(frozen=True)
class Options:
    """Parsed options.

    Attributes:
        start, end, as_of: None if the option is not given.
        offsets_max: Maximum number of offsets in one batch of a stream.
        fail_on_data_loss: Whether reading raises an error if changes have expired.
        filter: A condition on the rows whose changes are read, as text; None for all.
        push_filters: Whether filters that Spark pushes down are used; see ``batch.PushFilters``.
        consumer: Name of the consumer that records the progress of a stream; None for no consumer.
        transaction: Name of the writer of a batch write that is applied once.
        writer: Name of the writer of a stream; None for a name derived from the query.
        takeover: Whether another query may have written under this name before.
        given: Names of the given options, in lower case.
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
    filter: str | None
    push_filters: bool
    consumer: str | None
    transaction: str | None
    writer: str | None
    takeover: bool
    given: tuple[str, ...]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Parse options as Spark passes them; the case of their names does not matter.

        Raises:
            InvalidRequest: An option is unknown or missing, its value is invalid, or it contradicts another.
            SchemaMismatch: A column is named twice.
        """
        options = {name.lower(): value for name, value in given.items()}
        if "provider" in options:
            raise InvalidRequest(
                "Spark does not pass the options of a table in its catalog to a Python data source when it is read or "
                "written; use CREATE TEMPORARY VIEW … USING kvstore instead."
            )
        if unknown := sorted(set(options) - {name.lower() for name in (*NAMES, *_SPARKS)}):
            raise InvalidRequest("Unknown option.", unknown=unknown, options=NAMES)
        for name in ("path", "table"):
            if not options.get(name):
                raise InvalidRequest(f"Option `{name}` is missing or empty.", given=sorted(options))
        table, kind = _table(options["table"])
        both = "Options `{0}Offsets` and `{0}Timestamp` exclude each other; leave one out."
        for side in ("starting", "ending"):
            if f"{side}offsets" in options and f"{side}timestamp" in options:
                raise InvalidRequest(both.format(side))
        options_read = cls(
            path=directory_of(options["path"]),
            table=table,
            kind=kind,
            columns=_columns(options.get("columns")),
            start=_place(options, "startingOffsets", "startingTimestamp", ("full", "earliest", "latest")),
            end=_end(options),
            as_of=_as_of(options.get("asof")),
            offsets_max=_count(options.get("maxoffsetspertrigger")),
            fail_on_data_loss=_flag("failOnDataLoss", options.get("failondataloss", "true")),
            filter=options.get("filter"),
            push_filters=_flag("pushFilters", options.get("pushfilters", "false")),
            consumer=consumer_name(options["consumer"]) if "consumer" in options else None,
            transaction=_name("txnId", options.get("txnid"), TRANSACTION),
            writer=_name("writer", options.get("writer")),
            takeover=_flag("takeover", options.get("takeover", "false")),
            given=tuple(options),
        )
        if kind is Kind.ROWS and (options_read.start is not None or options_read.end is not None):
            raise InvalidRequest(
                "Starting and ending offsets are for a changelog, `<table>$changelog`; for earlier rows give `asOf`."
            )
        if kind is Kind.ROWS and options_read.filter is not None:
            raise InvalidRequest("Option `filter` is for changes, `<table>$changelog`; use where() for the rows.")
        if kind is not Kind.ROWS and options_read.as_of is not None:
            raise InvalidRequest("Option `asOf` is for a table's rows; a changelog ends at `endingOffsets`.")
        return options_read

    def check_use(self, use: Literal["read", "batch write", "stream write"]) -> None:
        """Refuse options that are for another use.

        Raises:
            InvalidRequest: An option is for another use, or a changelog or binlog would be written.
        """
        names = {"read": _READS, "batch write": _WRITES, "stream write": _STREAM_WRITES}[use]
        names_taken = {name.lower() for name in (*_ALL, *names, *(_SPARKS if use == "stream write" else ()))}
        if others := sorted(set(self.given) - names_taken):
            raise InvalidRequest(
                f"This option is not for a {use}; leave it out.", unknown=others, options=(*_ALL, *names)
            )
        if self.takeover and self.writer is None:
            raise InvalidRequest("Option `takeover` needs the name in option `writer`; give that, too.")
        if use != "read" and self.kind is not Kind.ROWS:
            raise InvalidRequest("Only a table can be written, not its changes; give option `table` its name only.")


def _name(option: str, text: str | None, prefix: str = "") -> str | None:
    """Name of a writer."""
    if text is None:
        return None
    return prefix + printable(option, text, NAME_BYTES_MAX - len(prefix))


def _table(text: str) -> tuple[str, Kind]:
    """Name of a table, and the view of it that is read."""
    name, dollar, kind = text.partition("$")
    if bool(dollar) != (kind in (Kind.CHANGELOG, Kind.BINLOG)):
        raise InvalidRequest(
            "Option `table` is `name` for a table's rows, or `name$changelog` or `name$binlog` for its changes.",
            given=text,
        )
    return name, Kind(kind)


def directory_of(path: str) -> str:
    """A path on this machine, also given as a ``file:`` URI; or another URL, such as that of a replica.

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
    return offsets_by_bucket(f"Option `{offsets}`", text, *words)


def _end(options: Mapping[str, str]) -> End | None:
    end = _place(options, "endingOffsets", "endingTimestamp", ("latest",))
    return "latest" if isinstance(end, str) else end


def _as_of(text: str | None) -> int | dict[int, int] | dt.datetime | None:
    return None if text is None else bound_of("Option `asOf`", text)


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
