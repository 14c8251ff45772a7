"""Checks of a call's arguments other than data: numbers, text, column names, and places in a log given as text."""

from __future__ import annotations

import datetime as dt
import operator
import os
import re
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from kvstore.errors import InvalidRequest, SchemaMismatch
from logformat.urls import HARMLESS_PARAMETERS, shown_url

_BY_BUCKET = 'JSON from bucket to offset such as {"0": 17, "1": 4}'

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(/?)(.*)", re.DOTALL)
"""A URL, also after pathlib has removed one of its slashes, as for paths of commands."""


def integer(name: str, given: Any) -> int:
    """Check that an argument is an integer, of Python or numpy; a bool is not.

    Raises:
        InvalidRequest: It is not an integer.
    """
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise InvalidRequest(f"`{name}` must be an integer.", **{name: shown(given)})


def integer_within(name: str, given: Any, low: int, high: int) -> int:
    """Check that an argument is an integer from ``low`` to ``high``.

    Raises:
        InvalidRequest: It is not.
    """
    number = integer(name, given)
    if not low <= number <= high:
        raise InvalidRequest(f"`{name}` must be an integer from {low} to {high}.", **{name: number})
    return number


def column_names(name: str, given: Any) -> list[str]:
    """Check column names: one name, or any ordered iterable of names.

    Raises:
        InvalidRequest: The argument is something else.
        SchemaMismatch: There are no names, or one is repeated.
    """
    ordered = isinstance(given, Iterable) and not isinstance(given, (Set, Mapping))
    names: list[Any] = [given] if isinstance(given, str) or not ordered else list(given)
    if not all(isinstance(each, str) for each in names):
        raise InvalidRequest(f"`{name}` must be a column name or a list of column names.", **{name: shown(given)})
    if not names or len(set(names)) < len(names):
        raise SchemaMismatch(f"`{name}` must have at least one column, and each only once.", **{name: names})
    return [str.__str__(each) for each in names]  # numpy's strings become plain ones


def printable(name: str, given: Any, bytes_max: int) -> str:
    """Check that an argument is printable text and not empty.

    Raises:
        InvalidRequest: It is something else, or too long.
    """
    if (
        not isinstance(given, str)
        or not 1 <= len(given.encode("utf-8", "surrogatepass")) <= bytes_max
        or not given.isprintable()
    ):
        raise InvalidRequest(f"`{name}` must be 1 to {bytes_max} bytes of printable text.", **{name: shown(given)})
    return str.__str__(given)


def url_without_credentials(name: str, given: str) -> str:
    """A URL that may be kept, and copied to replicas; the path of a directory as it is.

    Raises:
        InvalidRequest: It has credentials: user info, or parameters. The message has none of them.
    """
    # What is not text has no credentials; the call that gets it refuses it.
    if isinstance(given, str) and (without := shown_url(given)) != given:
        raise InvalidRequest(
            "A URL is kept in the catalog and copied to replicas, so it has no user info, and no parameters but"
            f" {', '.join(HARMLESS_PARAMETERS)}. Give credentials by environment variables (such as AWS_ACCESS_KEY_ID"
            " and AWS_SECRET_ACCESS_KEY) or by the configuration of the provider.",
            **{name: without},
        )
    return given


def shown(given: object) -> str:
    """The repr of a wrong argument for a message, at most 100 characters."""
    text = repr(given)
    return text if len(text) <= 100 else f"{text[:100]}…"


def bound_of(name: str, text: str, *words: str) -> Any:
    """A bound of a read, given as text: where it starts or ends, or the moment it is as of.

    Args:
        name: The argument as the caller writes it, for the message: ``--start``.
        words: Words that it may be, such as ``latest``.

    Returns:
        A word, an offset, a dict from bucket to offset, or a time.

    Raises:
        InvalidRequest: The text is none of these.
    """
    if text in words:
        return text
    if text.lstrip().startswith("{"):
        return offsets_by_bucket(name, text, *words)
    return offset_or_time(name, text, *words, _BY_BUCKET)


def offset_or_time(name: str, text: str, *others: str) -> int | dt.datetime:
    """An offset or a time; see :func:`time_of`."""
    if re.fullmatch("[0-9]{1,19}", text):
        return int(text)
    return time_of(name, text, *others, "an offset")


def time_of(name: str, text: str, *others: str) -> dt.datetime:
    """A time with its zone, in ISO 8601.

    Args:
        others: What the argument may be instead, for the message.

    Raises:
        InvalidRequest: The text is no time, or it has no zone.
    """
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise _none_of(name, text, *others, "a time with its zone such as 2026-01-31T12:00:00Z")
    return time


def offsets_by_bucket(name: str, text: str, *others: str) -> dict[int, int]:
    """An offset for each bucket, in JSON; see :func:`time_of`."""
    try:
        return {int(bucket): offset for bucket, offset in msgspec.json.decode(text, type=dict[str, int]).items()}
    except ValueError as error:
        raise _none_of(name, text, *others, _BY_BUCKET) from error


def _none_of(name: str, text: str, *forms: str) -> InvalidRequest:
    *others, last = forms
    return InvalidRequest(f"{name} is {', '.join(others)}{', or ' if others else ''}{last}.", given=shown(text))


def path_of(given: str | os.PathLike[str]) -> Path:
    """The path at which a store is to be opened.

    Raises:
        InvalidRequest: It is not a path, such as the URL of an object store, or it is not UTF-8.
    """
    try:
        path = Path(given).expanduser()
        encoded = os.fsencode(path)
    except (TypeError, UnicodeEncodeError, RuntimeError) as error:
        raise InvalidRequest("This is no path to a store.", path=shown(given), reason=str(error)) from error
    if b"\0" in encoded or not os.fspath(given):
        raise InvalidRequest("A path is not empty and has no null character; give another.", path=shown(given))
    _check_no_url(os.fspath(given))
    try:
        os.fsencode(os.path.realpath(path)).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("The path of a store is UTF-8; rename a directory.", path=shown(given)) from error
    return path


def _check_no_url(given: str) -> None:
    url = _URL.fullmatch(given)
    if url is None or (not url[2] and os.path.isdir(f"{url[1]}:")):
        return
    scheme, _, rest = url.groups()
    if scheme.lower() == "file":
        directory = "/" + unquote(rest.removeprefix("localhost" if url[2] else "").lstrip("/"))
        url_given = given if url[2] else f"file://{directory}"  # a path of Python has one slash where the URL had three
        raise InvalidRequest("Give the path of the directory, not its URL.", path=url_given, directory=directory)
    raise InvalidRequest(
        "A store is a directory on a local disk, not in an object store. A replica of it can be in one: "
        "`store.add_replica(url)` ships to s3://, gs:// and az:// URLs; `kvstore.restore(url, directory)` makes a "
        "store from a replica, and `kvstore.follow(url, directory)` keeps a copy current.",
        path=shown_url(f"{scheme}://{rest}"),
    )
