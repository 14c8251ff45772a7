"""Rows that were refused, found one by one where one by one they can be told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from logformat.errors import StoreError
from logformat.rows.changes import Changes
from writer.sequence import is_about_content

T = TypeVar("T")

_GIVEN_BYTES = 256
"""About what a row takes as it was given."""


@dataclass(frozen=True)
class Refused:
    """Rows that are not in the table, or are not known to be.

    Attributes:
        changes: The rows; if they do not fit the table's columns, a list of the dicts or keys as they were given.
        error: Why. If it is :class:`logformat.errors.NotAcknowledged`, they may have been written all the same.
    """

    changes: Changes | list[Any]
    error: StoreError

    @property
    def rows(self) -> list[Any]:
        """The rows as dicts, and keys as they were given."""
        return self.changes.rows.to_pylist() if isinstance(self.changes, Changes) else self.changes

    @property
    def size(self) -> int:
        """Bytes, about."""
        if isinstance(self.changes, Changes):
            return int(self.changes.rows.nbytes)
        return _GIVEN_BYTES * len(self.changes)


def tell_apart(count: int, attempt: Callable[[int, int], T]) -> tuple[list[T], list[tuple[int, StoreError]]]:
    """Do something to all of a row of things but those that make it fail for what they are.

    Args:
        attempt: Does it to those from one place to another; what fails is tried again in two halves.

    Returns:
        What the attempts returned, in order, and the places of those left out, with their errors.

    Raises:
        StoreError: It failed for another reason.
    """
    done, failed = [], []
    waiting = [(0, count)] if count else []
    while waiting:
        start, end = waiting.pop()
        try:
            done.append(attempt(start, end))
        except StoreError as error:
            if not is_about_content(error):
                raise
            if end - start == 1:
                failed.append((start, error))
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
    return done, failed
