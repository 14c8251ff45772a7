"""What a certification found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Self

from kvstore.testing.linearizability import drawing
from kvstore.testing.linearizability.operations import Operation, Record

Shrink = Callable[[], list[Operation]]


class Part(tuple[Record, ...]):
    """Records of a history in order of time, which as a history of their own are a violation.

    ``str`` and ``repr`` are a table of times and processes.

    Attributes:
        operations: Number of operations.
    """

    operations: int

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> Self:
        """The records of operations."""
        given = list(operations)
        records = [
            (record["time"], nth > 0, record) for operation in given for nth, record in enumerate(operation.records)
        ]
        part = cls(record for *_, record in sorted(records, key=lambda item: item[:2]))
        part.operations = len(given)
        return part

    def __repr__(self) -> str:
        return drawing.table(self)

    __str__ = __repr__


class Verdict:
    """The verdict on a history. It is true only if the history is linearizable: neither a violation nor unknown.

    Attributes:
        outcome: ``linearizable``, ``violation``, or ``unknown``: ``steps_max`` was too small to find either.
        operations: Number of operations that were judged; those that were refused are not among them.
        violations: For a map, the keys with a violation. For other models, ``[None]`` or nothing.
    """

    def __init__(self, operations: int, violations: dict[Hashable, Shrink], *, is_known: bool) -> None:
        self.outcome = "violation" if violations else "linearizable" if is_known else "unknown"
        self.operations = operations
        self.violations = list(violations)
        self._shrink = violations
        self._smallest: Part | None = None

    def __bool__(self) -> bool:
        return self.outcome == "linearizable"

    @property
    def smallest(self) -> Part | None:
        """The smallest part of the history that is a violation; None without a violation.

        No operation of it can be left out, and it is the same for each run. What it leaves out would explain nothing:
        the operations that may have set a value that was read are in it. Of a map it is the part of one key. For a
        model of your own, only operations that change no state are left out, and what came later.

        It is found when it is first asked for.
        """
        if self._smallest is None and self._shrink:
            parts = (Part.of(shrink()) for shrink in self._shrink.values())
            self._smallest = min(parts, key=lambda part: part.operations)
        return self._smallest

    def __repr__(self) -> str:
        return f"<Verdict: {self}>"

    def __str__(self) -> str:
        part = self.smallest
        return self._summary() if part is None else f"{self._summary()}\n\n{part}"

    def to_html(self) -> str:
        """One page, without links to others: the smallest part, as a drawing and as a table."""
        return drawing.page(self._summary(), self.smallest or ())

    def _summary(self) -> str:
        part = self.smallest
        if part is None:
            limit = "" if self else ": `steps_max` was reached"
            return f"{self.outcome}, {_count(self.operations)}{limit}"
        keys: list[Any] = [key for key in self.violations if key is not None]
        where = f" Keys with a violation: {', '.join(map(drawing.value_text, keys))}." if keys else ""
        return f"violation: no order explains these {part.operations} of {_count(self.operations)}.{where}"


def _count(operations: int) -> str:
    return f"{operations} operation{'' if operations == 1 else 's'}"
