"""The smallest part of a history that is a violation already.

* A part is a violation only for reasons that the whole history has, too. What is left out never takes away the source
  of a value that stays: of each value that an operation found, the latest operation that may have set it stays, and the
  others that may have, unless an operation that stays has certainly replaced their values.
* A part ends with the first answer that no order explains; operations that are open then have no answer.
* No operation can be left out of a part. Smaller parts that are not within it may exist: to find the smallest of all
  would take exponential time.
* The same history always has the same smallest part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from kvstore.testing.linearizability.models import Effect, HistoryModel, Register
from kvstore.testing.linearizability.operations import Operation
from kvstore.testing.linearizability.search import Budget, OutOfSteps, search

_FIRST_SIZE = 8

Places = frozenset[int]
"""Operations of a history, by their places in order of their starts."""


class Shrinking:
    """Leaves out of a violation what is not needed for it.

    Args:
        operations: The operations that are a violation, in order of their starts.
        model: Their model.
        violated_at: Time of the first end that no order passes.
        states: The states that the search has reached.
        steps: The steps that one search may take; one that needs more proves nothing.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        model: HistoryModel,
        *,
        violated_at: float,
        states: Iterable[Hashable],
        steps: int | None,
    ) -> None:
        self._operations = [
            operation
            for operation in operations
            if operation.start <= violated_at and (_sets(model, operation) or operation.end <= violated_at)
        ]
        self._opened = [_opened(operation) for operation in self._operations]
        self._steps = steps
        self._model = model
        self._without: Callable[[Places, Places], Places] = self._without_readers
        self._closed: Callable[[Places], Places] = self._with_writers
        if isinstance(model, Register):
            self._model = opened = Register([])
            opened.effects = model.effects | {
                copy: model.effects[operation] for operation, copy in zip(self._operations, self._opened, strict=True)
            }
            sources = _Sources(self._operations, [model.effects[operation] for operation in self._operations])
            self._without, self._closed = sources.without, sources.closed
        else:
            self._readers = frozenset(
                number
                for number, operation in enumerate(self._operations)
                if all(after == state for state in states for after in model.step(state, operation))
            )
        self._whole = frozenset(range(len(self._operations)))
        self._end = violated_at

    def smallest(self) -> list[Operation]:
        """The operations of the smallest part, in order of their starts; those without an answer in it are ``info``."""
        parts = [self._shrunk(is_backward=is_backward) for is_backward in (False, True)]
        places, end = min(parts, key=lambda part: len(part[0]))
        return self._of(places, end)

    def _shrunk(self, *, is_backward: bool) -> tuple[Places, float]:
        places, end = self._latest()
        while True:
            before = places, end
            size = max(1, len(places) // 2)
            while True:
                count = len(places)
                ordered = sorted(places, reverse=is_backward)
                for first in range(0, len(ordered), size):
                    fewer = self._without(places, frozenset(ordered[first : first + size]))
                    if len(fewer) < len(places) and (earlier := self._violated_at(fewer, end)) is not None:
                        places, end = self._until(fewer, earlier), earlier
                if size == 1 and len(places) == count:
                    break
                size = max(1, size // 2)
            if (places, end) == before:
                return places, end

    def _latest(self) -> tuple[Places, float]:
        """The last operations, as many as are a violation, with what they need."""
        size = _FIRST_SIZE
        while size < len(self._operations):
            places = self._closed(frozenset(sorted(self._whole)[-size:]))
            if (latest := self._violated_at(places, self._end)) is not None:
                return self._until(places, latest), latest
            size *= 2
        return self._whole, self._end

    def _until(self, places: Places, end: float) -> Places:
        """The operations that matter if a part ends at a time."""
        return frozenset(
            number
            for number in places
            if self._operations[number].start <= end
            and (self._operations[number].end <= end or _sets(self._model, self._operations[number]))
        )

    def _of(self, places: Places, end: float) -> list[Operation]:
        return [
            self._operations[number] if self._operations[number].records[-1]["time"] <= end else self._opened[number]
            for number in sorted(self._until(places, end))
        ]

    def _violated_at(self, places: Places, end: float) -> float | None:
        try:
            return search(self._of(places, end), self._model, Budget(self._steps)).violated_at
        except OutOfSteps:
            return None

    def _without_readers(self, places: Places, group: Places) -> Places:
        return places - (group & self._readers)

    def _with_writers(self, places: Places) -> Places:
        return places | (self._whole - self._readers)


class _Sources:
    """Which operations of a register may have set the value that another one found."""

    def __init__(self, operations: Sequence[Operation], effects: Sequence[Effect]) -> None:
        self._operations, self._effects = operations, effects
        self._setting: dict[Hashable, list[int]] = {}
        for number, effect in enumerate(effects):
            if effect.sets:
                self._setting.setdefault(effect.sets[0], []).append(number)

    def closed(self, places: Places) -> Places:
        """Operations with what they need, and what that needs."""
        closure = set(places)
        waiting = sorted(places)
        while waiting:
            number = waiting.pop()
            for source in self._lacking(number, closure):
                closure.add(source)
                waiting.append(source)
        return frozenset(closure)

    def without(self, places: Places, group: Places) -> Places:
        """Operations without some, and without those that need one that is left out."""
        rest = set(places - group)
        while True:
            lacking = [number for number in rest if next(iter(self._lacking(number, set(rest))), None) is not None]
            if not lacking:
                return frozenset(rest)
            rest.difference_update(lacking)

    def _lacking(self, number: int, places: set[int]) -> Iterable[int]:
        """What an operation needs and a part lacks; the part may grow meanwhile."""
        effect, operation = self._effects[number], self._operations[number]
        if not effect.sees and not effect.lacks:
            return
        # The latest start of what certainly took effect before the operation began, in the part.
        replaced = max(
            (
                self._operations[other].start
                for other in places
                if self._effects[other].sets and self._operations[other].end < operation.start
            ),
            default=-math.inf,
        )
        is_latest = bool(effect.sees)
        for source in self._sources(number):
            before = self._operations[source]
            if source not in places and (is_latest or before.end >= replaced):
                yield source
                if before.end < operation.start:
                    replaced = max(replaced, before.start)
            is_latest = False

    def _sources(self, number: int) -> list[int]:
        """All that may have set what an operation found, latest first."""
        effect, end = self._effects[number], self._operations[number].end
        if effect.sees:
            setting = self._setting.get(effect.sees[0], [])
        else:
            setting = sorted(p for value, writers in self._setting.items() if value != effect.lacks[0] for p in writers)
        return [p for p in reversed(setting) if p != number and self._operations[p].start <= end]


def _sets(model: HistoryModel, operation: Operation) -> bool:
    """Whether an operation may have changed the state although its end is not known."""
    return not isinstance(model, Register) or bool(model.effects[operation].sets)


def _opened(operation: Operation) -> Operation:
    """The operation without its answer."""
    return replace(operation, type="info", result=None, end=math.inf, records=operation.records[:1])
