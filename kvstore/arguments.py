"""What a call is given besides data: numbers, texts and names of columns."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

from kvstore.errors import InvalidRequest, SchemaMismatch
from logformat.urls import HARMLESS_PARAMETERS, shown_url


def integer(name: str, given: Any) -> int:
    """An integer, numpy's too; a bool is none.

    Raises:
        InvalidRequest: It is something else.
    """
    try:
        if not isinstance(given, bool):
            return operator.index(given)
    except TypeError:
        pass
    raise InvalidRequest(f"`{name}` is an integer.", **{name: shown(given)})


def integer_within(name: str, given: Any, low: int, high: int) -> int:
    """An integer from ``low`` to ``high``.

    Raises:
        InvalidRequest: It is something else.
    """
    number = integer(name, given)
    if not low <= number <= high:
        raise InvalidRequest(f"`{name}` is an integer from {low} to {high}.", **{name: number})
    return number


def column_names(name: str, given: Any) -> list[str]:
    """One name, or any iterable of names that has an order.

    Raises:
        InvalidRequest: It is something else.
        SchemaMismatch: There is none, or one of them twice.
    """
    ordered = isinstance(given, Iterable) and not isinstance(given, (Set, Mapping))
    names: list[Any] = [given] if isinstance(given, str) or not ordered else list(given)
    if not all(isinstance(each, str) for each in names):
        raise InvalidRequest(f"`{name}` is the name of a column, or a list of names.", **{name: shown(given)})
    if not names or len(set(names)) < len(names):
        raise SchemaMismatch(f"`{name}` names at least one column, and each only once.", **{name: names})
    return [str.__str__(each) for each in names]  # numpy's strings are no plain ones


def printable(name: str, given: Any, bytes_max: int) -> str:
    """Text that can be shown, and is not empty.

    Raises:
        InvalidRequest: It is something else, or too long.
    """
    if (
        not isinstance(given, str)
        or not 1 <= len(given.encode("utf-8", "surrogatepass")) <= bytes_max
        or not given.isprintable()
    ):
        raise InvalidRequest(f"`{name}` is 1 to {bytes_max} bytes of printable text.", **{name: shown(given)})
    return str.__str__(given)


def url_without_credentials(name: str, given: str) -> str:
    """A URL that may be kept, and copied to replicas; the path of a directory as it is.

    Raises:
        InvalidRequest: It has credentials: user info, or parameters. The message has none of them.
    """
    if (without := shown_url(given)) != given:
        raise InvalidRequest(
            "A URL is kept in the catalog and copied to replicas, so it has no user info, and no parameters but"
            f" {', '.join(HARMLESS_PARAMETERS)}. Give credentials by environment variables (such as AWS_ACCESS_KEY_ID"
            " and AWS_SECRET_ACCESS_KEY) or by the configuration of the provider.",
            **{name: without},
        )
    return given


def shown(given: object) -> str:
    """A wrong argument as it is told of: so that its type shows, and not at any length."""
    text = repr(given)
    return text if len(text) <= 100 else f"{text[:100]}…"
