"""The judge of histories: each register is searched for an order of its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial

from kvstore.errors import InvalidRequest
from kvstore.testing.linearizability.models import HistoryModel, Register, by_key, is_judged
from kvstore.testing.linearizability.operations import Operation, Record, operations_of
from kvstore.testing.linearizability.search import Budget, Found, OutOfSteps, search
from kvstore.testing.linearizability.smallest import Shrinking
from kvstore.testing.linearizability.verdict import Shrink, Verdict


def certify(
    history: Iterable[Record], model: str | HistoryModel = "register", *, steps_max: int | None = None
) -> Verdict:
    """Judge whether a history of concurrent operations is linearizable.

    It is if each operation can be given one moment between its invocation and its end, so that one after the other,
    in order of these moments, they have the answers that they had. An operation with an unknown outcome has its moment
    at any time after its invocation, or none. docs/how-to/certify-a-history.md says what a history is.

    The search takes time that grows with the number of operations, and exponentially with how many are open at once.
    Some 10,000 operations of five processes take seconds.

    Args:
        history: Records, in any order: dicts with ``process``, ``type`` (``invoke``, ``ok``, ``fail``, ``info``),
            ``f``, ``value`` and ``time``. :func:`read_history` reads them from files.
        model: ``register``: one value, None at first. ``map``: a register for each key, judged one by one; values are
            ``(key, value)``. Or a :class:`HistoryModel`.
        steps_max: The number of steps of the model after which the search gives up: the outcome of the verdict is
            ``unknown`` then, and it is not true. Without it the search ends only with an answer.

    Raises:
        InvalidRequest: The history has a record that is none, an end without an invocation, two open operations of one
            process, or an operation that the model does not have; or an argument is wrong.
    """
    if steps_max is not None and (isinstance(steps_max, bool) or not isinstance(steps_max, int) or steps_max < 1):
        raise InvalidRequest(f"steps_max is a number above 0, or None; not {steps_max!r}.")
    parts = _parts(operations_of(history), model)
    budget = Budget(steps_max)
    violations: dict[Hashable, Shrink] = {}
    is_known = True
    for key, (operations, judge) in parts.items():
        try:
            result = search(operations, judge, budget)
        except OutOfSteps:
            is_known = False
            continue
        if result.violated_at is not None:
            violations[key] = partial(_smallest, operations, judge, result, result.violated_at, steps_max)
    return Verdict(sum(len(operations) for operations, _ in parts.values()), violations, is_known=is_known)


def _parts(
    operations: list[Operation], model: str | HistoryModel
) -> dict[Hashable, tuple[Sequence[Operation], HistoryModel]]:
    """What is judged one by one."""
    if model == "register":
        judged = [operation for operation in operations if is_judged(operation)]
        return {None: (judged, Register(judged))}
    if model == "map":
        registers = by_key(operation for operation in operations if is_judged(operation))
        return {key: (operations_of_key, Register(operations_of_key)) for key, operations_of_key in registers.items()}
    if isinstance(model, (str, type)) or not (hasattr(model, "initial") and hasattr(model, "step")):
        raise InvalidRequest(f"A model is 'register', 'map', or an object with `initial` and `step`; not {model!r}.")
    return {None: ([operation for operation in operations if operation.type != "fail"], model)}


def _smallest(
    operations: Sequence[Operation], model: HistoryModel, result: Found, violated_at: float, steps: int | None
) -> list[Operation]:
    return Shrinking(operations, model, violated_at=violated_at, states=result.states, steps=steps).smallest()
