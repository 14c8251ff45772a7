"""What operations may do to a state: the protocol of a model, and the register, which is also each key of a map."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kvstore.errors import InvalidRequest
from kvstore.testing.linearizability.operations import Operation


class HistoryModel(Protocol):
    """What :func:`certify` knows of the thing that a history is about: a counter, a lock, a queue.

    Operations of the type ``fail`` did not take place, and never reach a model. An operation that answers "no" is an
    ``ok`` with that answer.
    """

    def initial(self) -> Hashable:
        """The state before the first operation."""

    def step(self, state: Any, operation: Operation) -> Iterable[Hashable]:
        """The states after an operation that takes effect in a state; none if it can't, or not with its answer.

        Args:
            state: A state, never to be changed in place.
            operation: Its ``type`` is ``ok``, or ``info``: then its answer is unknown, and any would do.

        Returns:
            Most often one state, such as ``[state + 1]``; an empty list if the operation is impossible.
        """


@dataclass(frozen=True)
class Effect:
    """What an operation does to a register.

    Attributes:
        sees: The value that it found; None if that is of no account. In a tuple, because a value may be None.
        lacks: A value that it did not find, in a tuple.
        sets: The value that it leaves, in a tuple.
    """

    sees: tuple[Hashable, ...] = ()
    lacks: tuple[Hashable, ...] = ()
    sets: tuple[Hashable, ...] = ()


class Register:
    """One value, None at first: ``read``, ``write`` and ``cas``, whose value is ``[expected, new]``.

    Args:
        operations: The operations to judge.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.effects = {operation: _effect(operation) for operation in operations}

    def initial(self) -> Hashable:
        """None."""
        return None

    def step(self, state: Any, operation: Operation) -> Iterable[Hashable]:
        """The state after an operation."""
        effect = self.effects[operation]
        if (effect.sees and effect.sees[0] != state) or (effect.lacks and effect.lacks[0] == state):
            return ()
        return effect.sets or (state,)


def is_judged(operation: Operation) -> bool:
    """Whether an operation of a register says anything about its value.

    A ``cas`` that failed found another value than it expected, unless its end has an ``error``: then it was refused,
    as any other operation that failed. A read without an answer has no effect.
    """
    if operation.type == "fail":
        return operation.f == "cas" and operation.records[-1].get("error") is None
    return operation.type == "ok" or operation.f != "read"


def by_key(operations: Iterable[Operation]) -> dict[Hashable, list[Operation]]:
    """Operations of a map, whose values are ``(key, value)``, as those of one register for each key.

    Raises:
        InvalidRequest: A value is no such pair, or an end has another key than its invocation.
    """
    operations_of: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        key, value = _pair(operation.value, operation, "(key, value)")
        frozen = frozen_value(key)
        result = operation.result
        if result is not None:
            result_key, result = _pair(result, operation, "(key, value)")
            if frozen_value(result_key) != frozen:
                raise InvalidRequest(f"An operation of key {key!r} ends with key {result_key!r}.{_place(operation)}")
        elif operation.type == "ok" and operation.f == "read":
            raise InvalidRequest(f"The value of a read's end is (key, value), not None.{_place(operation)}")
        operations_of.setdefault(frozen, []).append(replace(operation, value=value, result=result))
    return operations_of


def frozen_value(value: Any) -> Hashable:
    """A value that can be hashed and compared: lists and tuples are alike, and so are dicts of equal items.

    Raises:
        InvalidRequest: A value in it can't be hashed.
    """
    if isinstance(value, (list, tuple)):
        return tuple(frozen_value(item) for item in value)
    if isinstance(value, Mapping):
        return frozenset((key, frozen_value(item)) for key, item in value.items())
    if isinstance(value, float) and value != value:
        return _NOT_A_NUMBER
    try:
        hash(value)
    except TypeError:
        raise InvalidRequest(
            f"A value of a history can't be hashed: {value!r}. Use numbers, texts, lists and dicts."
        ) from None
    return value


_NOT_A_NUMBER = ("not a number",)


def _effect(operation: Operation) -> Effect:
    match operation.f:
        case "read":
            return Effect(sees=(frozen_value(operation.result),))
        case "write":
            written = frozen_value(operation.value)
            _check_end(operation, written)
            return Effect(sets=(written,))
        case "cas":
            expected, new = (frozen_value(v) for v in _pair(operation.value, operation, "[expected, new]"))
            if operation.type == "fail":
                return Effect(lacks=(expected,))
            _check_end(operation, (expected, new))
            return Effect(sees=(expected,), sets=(new,))
    raise InvalidRequest(f"A register or map has read, write and cas, not {operation.f!r}.{_place(operation)}")


def _check_end(operation: Operation, value: Hashable) -> None:
    if operation.result is not None and frozen_value(operation.result) != value:
        raise InvalidRequest(
            f"The end of a {operation.f} has the value {operation.result!r}: give that of its invocation, or None."
            f"{_place(operation)}"
        )


def _pair(value: Any, operation: Operation, form: str) -> tuple[Any, Any]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise InvalidRequest(f"The value of a {operation.f} is {form}, not {value!r}.{_place(operation)}")
    return value[0], value[1]


def _place(operation: Operation) -> str:
    return f" It was invoked by process {operation.process!r} at {operation.start}."
