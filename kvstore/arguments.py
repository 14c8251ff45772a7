"""What a call is given besides data: numbers, names of columns, and what only a later version takes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

from kvstore.errors import InvalidRequest, SchemaMismatch, UnsupportedOperation


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


def refuse_later(**given: Any) -> None:
    """Refuse arguments of a later version, unless they are left out: None or False.

    Raises:
        UnsupportedOperation: One is given.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise UnsupportedOperation(
                f"`{name}` is not supported by this version; leave it out.", **{name: shown(value)}
            )


def shown(given: object) -> str:
    """A wrong argument as it is told of: so that its type shows, and not at any length."""
    text = repr(given)
    return text if len(text) <= 100 else f"{text[:100]}…"
