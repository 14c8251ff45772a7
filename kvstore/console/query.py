"""The parameters of a request, checked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from kvstore.arguments import offset_or_time
from kvstore.clock import time_text
from kvstore.errors import InvalidRequest
from logformat.ids import OFFSET_MAX

TEXT_LETTERS_MAX = 10_000
TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999; Python has no later time."""


class Query:
    """Parameters of a request, in order; a name may come several times.

    Args:
        pairs: Names and values.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = list(pairs)

    def all(self, name: str) -> list[str]:
        """Every value of a name."""
        return [value for given, value in self._pairs if given == name]

    def text(self, name: str) -> str | None:
        """The value of a name; None if it is not there, or empty.

        Raises:
            InvalidRequest: It is very long.
        """
        value = next(iter(self.all(name)), "")
        if len(value) > TEXT_LETTERS_MAX:
            raise InvalidRequest(f"`{name}` has too many characters.", characters=len(value))
        return value or None

    def number(self, name: str, least: int = 0, most: int = OFFSET_MAX) -> int | None:
        """The value of a name as a whole number; None if it is not there.

        Raises:
            InvalidRequest: It is none, or out of range.
        """
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
            raise InvalidRequest(f"`{name}` is a number from {least} to {most}.", given=repr(value))
        return int(value)

    def with_time(self, name: str, of: str) -> Query:
        """The same query with another parameter, a number of milliseconds since the Unix epoch, as the time ``name``.

        Raises:
            InvalidRequest: Both are there, or it is no such number.
        """
        milliseconds = self.number(of, most=TIME_MS_MAX)
        if milliseconds is None:
            return self
        if self.text(name) is not None:
            raise InvalidRequest(f"Give `{name}` or `{of}`, not both.", given=milliseconds)
        rest = [(given, value) for given, value in self._pairs if given not in (name, of)]
        return Query([*rest, (name, time_text(milliseconds))])

    def bound(self, name: str) -> int | dt.datetime | None:
        """The value of a name as an offset or a time; None if it is not there.

        Raises:
            InvalidRequest: It is neither.
        """
        value = self.text(name)
        return None if value is None else offset_or_time(f"`{name}`", value)
