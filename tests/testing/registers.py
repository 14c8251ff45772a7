"""Histories of a register for tests: drawn ones, ones that a register really had, and a judge that tries all orders."""

from __future__ import annotations

import math
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st

VALUES = [None, 0, 1, 2]


class Op(NamedTuple):
    """One operation; ``end`` is infinite and ``result`` None if its outcome is unknown."""

    process: int
    f: str
    value: Any
    type: str
    result: Any
    start: int
    end: float


def records(operations: list[Op], random: Random | None = None) -> list[dict[str, Any]]:
    """Their history, shuffled; an unknown outcome is a record or is missing."""
    found: list[dict[str, Any]] = []
    for place, operation in enumerate(operations):
        common = {"process": operation.process, "f": operation.f}
        found.append({**common, "type": "invoke", "value": operation.value, "time": operation.start})
        if operation.type != "info":
            found.append({**common, "type": operation.type, "value": operation.result, "time": operation.end})
        elif place % 2:
            found.append({**common, "type": "info", "value": None, "time": operation.start + 1})
    if random is not None:
        random.shuffle(found)
    return found


@st.composite
def small(draw: st.DrawFn, *, operations_max: int = 6) -> list[Op]:
    """Up to six operations at any times, with any answers; each operation has a process of its own."""
    found = []
    for process in range(draw(st.integers(1, operations_max))):
        f = draw(st.sampled_from(["read", "write", "cas"]))
        value = st.sampled_from(VALUES)
        given = None if f == "read" else draw(value) if f == "write" else [draw(value), draw(value)]
        types = ["ok", "ok", "ok", "info", "fail"] if f != "cas" else ["ok", "ok", "fail", "fail", "info"]
        type = draw(st.sampled_from(types))
        start = draw(st.integers(0, 12))
        end = math.inf if type == "info" else start + draw(st.integers(0, 6))
        result = draw(value) if f == "read" and type == "ok" else None
        found.append(Op(process, f, given, type, result, start, end))
    return found


def has_an_order(operations: list[Op], state: Any = None) -> bool:
    """Whether some order explains all answers: every order is tried."""
    if all(operation.type == "info" or is_without_effect(operation) for operation in operations):
        return True
    for place, operation in enumerate(operations):
        others = operations[:place] + operations[place + 1 :]
        if any(other.end < operation.start for other in others if not is_without_effect(other)):
            continue
        for after in states_after(operation, state):
            if has_an_order(others, after):
                return True
    return False


def is_without_effect(operation: Op) -> bool:
    return operation.type == "fail" and operation.f != "cas"


def states_after(operation: Op, state: Any) -> list[Any]:
    match operation.f, operation.type:
        case "read", "ok":
            return [state] if state == operation.result else []
        case "read", _:
            return [state]
        case "write", "ok" | "info":
            return [operation.value]
        case "write", "fail":
            return [state]
        case "cas", "fail":
            return [state] if state != operation.value[0] else []
    return [operation.value[1]] if state == operation.value[0] else []


def happened(random: Random, *, operations: int, processes: int, unknown: float = 0.1, values: int = 3) -> list[Op]:
    """Operations that a register answered, each at a random moment between its start and its end.

    Args:
        unknown: How many writes and conditional writes have no answer; half of these take effect at some time.
        values: Writes have one of so many values.
    """
    state: Any = None
    running: dict[int, Op] = {}
    answered: set[int] = set()
    late: list[Op] = []
    found: list[Op] = []
    names = list(range(processes))
    started = time = 0
    while started < operations or running:
        time += 1
        if late and random.random() < 0.1:
            state = ([*states_after(late.pop(random.randrange(len(late))), state), state])[0]
        slot = random.randrange(processes)
        operation = running.get(slot)
        if operation is None:
            if started < operations:
                started += 1
                f = random.choice(["read", "read", "write", "cas"])
                new = random.randrange(values)
                expected = state if random.random() < 0.7 else random.randrange(values)
                value = None if f == "read" else new if f == "write" else [expected, new]
                running[slot] = Op(names[slot], f, value, "info", None, time, math.inf)
        elif slot not in answered:
            if operation.f != "read" and random.random() < unknown:
                if random.random() < 0.5:
                    late.append(operation)
                found.append(running.pop(slot))
                names[slot] += processes  # as a client that was killed and started again
                continue
            answered.add(slot)
            after = states_after(operation, state)
            running[slot] = operation._replace(
                type="ok" if after or operation.f == "read" else "fail",
                result=state if operation.f == "read" else None,
            )
            state = after[0] if after and operation.f != "read" else state
        else:
            answered.remove(slot)
            found.append(running.pop(slot)._replace(end=time))
    return sorted(found, key=lambda operation: operation.start)


def mutated(random: Random, operations: list[Op]) -> list[Op]:
    """The same operations with another answer to a read, if there is one."""
    reads = [place for place, operation in enumerate(operations) if operation.f == "read"]
    if not reads:
        return operations
    changed, place = list(operations), random.choice(reads)
    changed[place] = changed[place]._replace(result=random.choice(VALUES))
    return changed
