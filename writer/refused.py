"""Refused rows, and the search for the rows that cause a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from logformat.errors import StoreError
from logformat.rows.changes import Changes
from writer.sequence import is_about_content

T = TypeVar("T")

_GIVEN_BYTES = 256
"""Estimated bytes of one row in the form it was given."""


@dataclass(frozen=True)
class Refused:
    """Rows that are not in the table, or are not known to be.

    Attributes:
        changes: The rows; if they do not fit the table's columns, a list of the dicts or keys as given.
        error: The reason. If it is :class:`logformat.errors.NotAcknowledged`, they may have been written all the same.
    """

    changes: Changes | list[Any]
    error: StoreError

    @property
    def rows(self) -> list[Any]:
        """The rows as dicts, and keys as given."""
        return self.changes.rows.to_pylist() if isinstance(self.changes, Changes) else self.changes

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        if isinstance(self.changes, Changes):
            return int(self.changes.rows.nbytes)
        return _GIVEN_BYTES * len(self.changes)


def tell_apart(count: int, attempt: Callable[[int, int], T]) -> tuple[list[T], list[tuple[int, StoreError]]]:
    """Apply ``attempt`` to a range of elements, leaving out single elements whose content makes it fail.

    Args:
        attempt: Takes the start and end of a range; a range that fails is split in two halves.

    Returns:
        The results of the attempts, in order, and the positions of the elements left out, with their errors.

    Raises:
        StoreError: An attempt failed for another reason.
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
