"""The operations of a history, made of its records: each invocation with its end.

* A process has one open operation at a time, so an end belongs to the invocation before it.
* Records are ordered by their times, never by their places in the list. Where two times are equal, an invocation counts
  as before an end: operations that only touch are concurrent. Of one process, records of one time alternate.
* An invocation without an end has the outcome ``info``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kvstore.errors import InvalidRequest

Record = Mapping[str, Any]
"""One line of a history: ``process``, ``type``, ``f``, ``value``, ``time`` and whatever else a recorder adds."""

_ENDS = ("ok", "fail", "info")


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of a process.

    Attributes:
        process: The process that called.
        f: What it called, such as ``write``.
        value: The value of the invocation.
        type: ``ok``: it took effect between ``start`` and ``end``, and ``result`` is its answer. ``info``: it takes
            effect at any time after ``start``, or never, and its answer is unknown.
        result: The value of the end; None without an answer.
        start: Time of the invocation.
        end: Time of the end; infinite for ``info``.
        records: The records of the history: the invocation, and the end if there is one.
    """

    process: Any
    f: str
    value: Any
    type: str
    result: Any
    start: float
    end: float
    records: tuple[Record, ...]


def operations_of(history: Iterable[Record]) -> list[Operation]:
    """All operations in order of their starts.

    Also those that failed, with the type ``fail``. An operation of the type ``fail`` whose end has an ``error`` was
    refused: it says nothing about the state.

    Raises:
        InvalidRequest: A record is not one, or an end has no invocation, or a process has two open operations.
    """
    by_process: dict[Any, list[tuple[float, int, Record]]] = {}
    if isinstance(history, (str, bytes, Mapping)):
        raise InvalidRequest("A history is a list of records; `read_history(path)` reads one from files.")
    for number, record in enumerate(history):
        process, time = _checked(record, number)
        by_process.setdefault(process, []).append((time, number, record))
    operations: list[tuple[float, int, Operation]] = []
    for process, records in by_process.items():
        records.sort(key=lambda item: item[:2])
        operations += _of_process(process, records)
    # By the process too, so that the places in the list decide nothing.
    operations.sort(key=lambda item: (item[0], repr(item[2].process), item[1]))
    return [operation for _, _, operation in operations]


def _checked(record: Any, number: int) -> tuple[Any, float]:
    if not isinstance(record, Mapping):
        raise InvalidRequest(f"A record of a history is a dict, not {record!r}.", record=number)
    for name in ("process", "type", "time"):
        if name not in record:
            raise InvalidRequest(f"A record of the history lacks `{name}`: {dict(record)}.", record=number)
    if record["type"] != "invoke" and record["type"] not in _ENDS:
        raise InvalidRequest(f"Unknown type {record['type']!r}: it is invoke, ok, fail or info.", record=number)
    time = record["time"]
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not math.isfinite(time):
        raise InvalidRequest(f"A time is a number, not {time!r}.", record=number)
    process = record["process"]
    try:
        hash(process)
    except TypeError:
        raise InvalidRequest(f"A process is a number or a text, not {process!r}.", record=number) from None
    return process, time


def _of_process(process: Any, records: list[tuple[float, int, Record]]) -> Iterable[tuple[float, int, Operation]]:
    """The operations of one process, each with its start and the place of its invocation."""
    opened: tuple[float, int, Record] | None = None
    for time, number, record in _in_turn(records):
        if record["type"] == "invoke":
            if opened is not None:
                raise InvalidRequest(
                    f"Process {process!r} invokes at {time} while its operation from {opened[0]} is open. Name each "
                    "thread and each restarted process differently, or end the earlier operation with `info`.",
                    record=number,
                )
            if not isinstance(record.get("f"), str):
                raise InvalidRequest(f"An invocation has no `f`, such as read or write: {dict(record)}.", record=number)
            opened = time, number, record
        elif opened is None:
            raise InvalidRequest(
                f"The {record['type']} of process {process!r} at {time} ends no operation: an invocation before it is "
                "missing, or has a later time.",
                record=number,
            )
        else:
            start, first, invocation = opened
            if record.get("f", invocation["f"]) != invocation["f"]:
                raise InvalidRequest(
                    f"Process {process!r} invokes {invocation['f']!r} at {start}, and {record['f']!r} ends at {time}.",
                    record=number,
                )
            yield start, first, _operation(invocation, record)
            opened = None
    if opened is not None:
        yield opened[0], opened[1], _operation(opened[2], None)


def _in_turn(records: list[tuple[float, int, Record]]) -> Iterable[tuple[float, int, Record]]:
    """Records of one process; those of one time alternate: the end of what is open comes before an invocation."""
    opened: Record | None = None
    for _, same_time in groupby(records, key=lambda item: item[0]):
        waiting = list(same_time)
        while waiting:
            record = waiting.pop(max(range(len(waiting)), key=lambda nth: (_fits(waiting[nth][2], opened), -nth)))
            opened = record[2] if record[2]["type"] == "invoke" else None
            yield record


def _fits(record: Record, opened: Record | None) -> int:
    """How well a record comes after an invocation, or after an end if none is open."""
    if opened is None or record["type"] == "invoke":
        return 2 if (opened is None) == (record["type"] == "invoke") else 0
    return 2 if record.get("f") == opened.get("f") else 1


def _operation(invocation: Record, end: Record | None) -> Operation:
    type = "info" if end is None else end["type"]
    return Operation(
        process=invocation["process"],
        f=invocation["f"],
        value=invocation.get("value"),
        type=type,
        result=end.get("value") if end is not None and type == "ok" else None,
        start=invocation["time"],
        end=math.inf if end is None or type == "info" else end["time"],
        records=(invocation,) if end is None else (invocation, end),
    )
