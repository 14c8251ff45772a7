"""The search for an order in which operations take effect one by one: Wing and Gong's, with Lowe's memory of states.

* The search goes through the ends of operations in order of time. Before an end is passed, its operation has taken
  effect, together with others that were invoked before, in any order that the model allows. An effect is put off until
  an end needs it, so an operation that never ends takes effect only where that helps.
* What was tried is remembered as (end, operations beyond it that took effect, state). Of two such with the same
  operations that end, the one that used fewer of those that never end can do all that the other can.
* An operation that sets nothing, in any state, takes effect as soon as it is possible: later it could do no more. This
  is known of registers only.
* The first end that no order passes is the end of the shortest prefix that is a violation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvstore.errors import InvalidRequest
from kvstore.testing.linearizability.models import Effect, HistoryModel, Register
from kvstore.testing.linearizability.operations import Operation


class OutOfSteps(Exception):
    """The search has used all steps that it was given."""


@dataclass
class Budget:
    """How many steps of a model a search may still take; None for no limit."""

    steps: int | None = None

    def take(self) -> None:
        """Count a step."""
        if self.steps is not None:
            if self.steps <= 0:
                raise OutOfSteps
            self.steps -= 1


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        violated_at: Time of the first end that no order passes; None if there is an order.
        states: All states that some order reaches up to there.
    """

    violated_at: float | None
    states: frozenset[Hashable] = frozenset()


@dataclass(frozen=True)
class _Node:
    """A place of the search.

    Attributes:
        end: How many ends are passed.
        done: The operations with a later end that have taken effect, a bit for the slot of each.
        used: The operations without an end that have taken effect, a bit for each.
        state: The state after all of these.
    """

    end: int
    done: int
    used: int
    state: Hashable


@dataclass
class _Tried:
    """For each place without ``used``, the smallest sets ``used`` that were tried there."""

    used: dict[tuple[int, int, Hashable], list[int]] = field(default_factory=dict)

    def add(self, node: _Node) -> bool:
        """Remember a place; False if it can't lead further than one that was tried before."""
        masks = self.used.setdefault((node.end, node.done, node.state), [])
        if any(used & node.used == used for used in masks):
            return False
        masks[:] = [used for used in masks if used & node.used != node.used]
        masks.append(node.used)
        return True


class _Search:
    def __init__(self, operations: Sequence[Operation], model: HistoryModel, budget: Budget) -> None:
        self._model, self._budget = model, budget
        self._ending = sorted((o for o in operations if o.end < math.inf), key=lambda operation: operation.end)
        self._endless = sorted((o for o in operations if o.end == math.inf), key=lambda operation: operation.start)
        starts = [operation.start for operation in self._endless]
        # How many operations without an end have begun at each end.
        self._begun = [bisect_right(starts, operation.end) for operation in self._ending]
        self._twins: Sequence[int | None] = [None] * len(self._endless)
        self._is_reader = [False] * len(self._ending)
        # What register operations without an end set: their places in order of their starts.
        self._setting: dict[Hashable, list[int]] = {}
        if isinstance(model, Register):
            self._twins = _twins(self._endless, model)
            for number, operation in enumerate(self._endless):
                self._setting.setdefault(model.effects[operation].sets[0], []).append(number)
            self._is_reader = [not model.effects[operation].sets for operation in self._ending]
        self._assign_slots()

    def _assign_slots(self) -> None:
        """Give each operation that ends a bit which no other open one has, so that sets of open ones stay small."""
        by_start = sorted(range(len(self._ending)), key=lambda number: self._ending[number].start)
        self._slot = [0] * len(self._ending)
        # For each end, the other operations that are open then, in order of their ends.
        self._open: list[tuple[int, ...]] = []
        free: list[int] = []
        opened: list[int] = []
        next_start = 0
        for number, operation in enumerate(self._ending):
            while next_start < len(by_start) and self._ending[by_start[next_start]].start <= operation.end:
                begun = by_start[next_start]
                self._slot[begun] = free.pop() if free else 1 << len(opened)
                opened.append(begun)
                next_start += 1
            opened.remove(number)
            self._open.append(tuple(sorted(opened)))
            free.append(self._slot[number])

    def run(self) -> Found:
        tried = _Tried()
        first = self._passed(_Node(0, 0, 0, self._hashable(self._model.initial())))
        tried.add(first)
        reached = first.end
        waiting = [] if first.end == len(self._ending) else [self._next(first)]
        while waiting:
            node = next(waiting[-1], None)
            if node is None:
                waiting.pop()
                continue
            node = self._passed(node)
            reached = max(reached, node.end)
            if node.end == len(self._ending):
                break
            if tried.add(node):
                waiting.append(self._next(node))
        if reached == len(self._ending):
            return Found(None)
        return Found(self._ending[reached].end, frozenset(state for _, _, state in tried.used))

    def _passed(self, node: _Node) -> _Node:
        """The place after all ends whose operations have taken effect, and with all that only reads and is possible."""
        end, done = node.end, node.done
        while end < len(self._ending):
            if done & (slot := self._slot[end]):
                done &= ~slot
                end += 1
                continue
            if self._only_reads(node.state, end):
                end += 1
                continue
            for number in self._open[end]:
                if not done & self._slot[number] and self._only_reads(node.state, number):
                    done |= self._slot[number]
            break
        return _Node(end, done, node.used, node.state)

    def _only_reads(self, state: Hashable, number: int) -> bool:
        """Whether an operation sets nothing, and is possible."""
        return self._is_reader[number] and bool(self._step(state, self._ending[number]))

    def _next(self, node: _Node) -> Iterator[_Node]:
        """The places after one more effect. Those from which the next end can be passed at once come first."""
        due = self._ending[node.end]
        for state in self._step(node.state, due):
            yield _Node(node.end + 1, node.done, node.used, state)
        others = []
        for after in self._other_effects(node):
            if self._step(after.state, due):
                yield after
            else:
                others.append(after)
        yield from others

    def _other_effects(self, node: _Node) -> Iterator[_Node]:
        for number in self._open[node.end]:
            slot = self._slot[number]
            if not node.done & slot:
                for state in self._step(node.state, self._ending[number]):
                    yield _Node(node.end, node.done | slot, node.used, state)
        for number in self._endless_to_try(node):
            if node.used >> number & 1:
                continue
            for state in self._step(node.state, self._endless[number]):
                if state != node.state:  # it need not take effect
                    yield _Node(node.end, node.done, node.used | 1 << number, state)

    def _endless_to_try(self, node: _Node) -> Iterable[int]:
        """Operations without an end that may have to take effect now.

        Since it may wait, one of a register takes effect right before one that sees what it has set, or before one that
        must not see what there is. Any other order is possible without it, or with it later.
        """
        if not isinstance(self._model, Register):
            return range(self._begun[node.end])
        effects = self._model.effects
        open_ones = [node.end, *(number for number in self._open[node.end] if not node.done & self._slot[number])]
        opened = [effects[self._ending[number]] for number in open_ones]
        if any(effect.lacks == (node.state,) for effect in opened):
            numbers = set(range(self._begun[node.end]))
        else:
            numbers = set()
            wanted = list({effect.sees[0] for effect in opened if effect.sees})
            seen = set(wanted)
            while wanted:
                for number in self._setting.get(wanted.pop(), ()):
                    if number >= self._begun[node.end]:
                        break
                    numbers.add(number)
                    for value in effects[self._endless[number]].sees:
                        if value not in seen and not node.used >> number & 1:
                            seen.add(value)
                            wanted.append(value)
        return [number for number in sorted(numbers) if (twin := self._twins[number]) is None or node.used >> twin & 1]

    def _step(self, state: Hashable, operation: Operation) -> tuple[Hashable, ...]:
        self._budget.take()
        return tuple(self._hashable(after) for after in self._model.step(state, operation))

    def _hashable(self, state: Hashable) -> Hashable:
        try:
            hash(state)
        except TypeError:
            raise InvalidRequest(
                f"A state of {type(self._model).__name__} can't be hashed: {state!r}. Use tuples and frozensets."
            ) from None
        return state


def _twins(endless: Sequence[Operation], register: Register) -> list[int | None]:
    """For each operation the last one before it that does the same: only the first unused one need be tried."""
    last: dict[Effect, int] = {}
    twins: list[int | None] = []
    for number, operation in enumerate(endless):
        effect = register.effects[operation]
        twins.append(last.get(effect))
        last[effect] = number
    return twins


def search(operations: Sequence[Operation], model: HistoryModel, budget: Budget) -> Found:
    """Search an order of operations, each within its times, that a model allows.

    Operations of the type ``info`` may be left out of the order.

    Raises:
        OutOfSteps: The budget is used up.
    """
    return _Search(operations, model, budget).run()
