"""The verdict on a history: against porcupine's, against a judge that tries all orders, and on what really happened."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from kvstore.errors import InvalidRequest
from kvstore.testing import Operation, certify
from tests.testing import jepsen, registers
from tests.testing.registers import Op


def record(process: Any, type: str, f: str, value: Any, time: float, **others: Any) -> dict[str, Any]:
    return {"process": process, "type": type, "f": f, "value": value, "time": time, **others}


def call(process: Any, f: str, value: Any, result: Any, start: float, end: float) -> list[dict[str, Any]]:
    return [record(process, "invoke", f, value, start), record(process, "ok", f, result, end)]


STALE = [*call(1, "write", 7, 7, 0, 1), *call(1, "write", 8, 8, 2, 3), *call(2, "read", None, 7, 4, 5)]


@pytest.mark.parametrize(("number", "is_linearizable"), jepsen.VERDICTS.items())
def test_verdicts_on_histories_of_etcd_are_those_of_porcupine(number: int, is_linearizable: bool) -> None:
    verdict = certify(jepsen.etcd(number))
    assert bool(verdict) == is_linearizable
    assert (verdict.smallest is None) == is_linearizable


class Text:
    """A model of a user: a text that is read, replaced and appended to."""

    def initial(self) -> str:
        return ""

    def step(self, state: str, operation: Operation) -> list[str]:
        if operation.f == "get":
            return [state] if operation.type == "info" or operation.result == state else []
        return [operation.value if operation.f == "put" else state + operation.value]


@pytest.mark.parametrize(("name", "is_linearizable"), [("c01-ok", True), ("c01-bad", False)])
def test_verdicts_with_a_model_of_a_user_are_those_of_porcupine(name: str, is_linearizable: bool) -> None:
    verdicts = [certify(history, Text()) for history in jepsen.kv(name).values()]
    assert all(verdicts) == is_linearizable
    for verdict in verdicts:
        if not verdict:
            assert not certify(verdict.smallest or [], Text())


SEEN: set[tuple[str, bool]] = set()


@settings(max_examples=400)
@given(registers.small(), st.randoms(use_true_random=False))
@example([Op(0, "write", 0, "ok", None, 0, 5), Op(1, "read", None, "ok", 0, 5, 6)], Random(0))
@example([Op(0, "write", 0, "info", None, 9, math.inf), Op(1, "read", None, "ok", 0, 5, 6)], Random(0))
@example([Op(0, "write", 0, "info", None, 0, math.inf), Op(1, "cas", [0, 1], "fail", None, 5, 6)], Random(0))
@example(
    [
        Op(0, "write", 1, "ok", None, 0, 1),
        Op(1, "write", 2, "ok", None, 2, 6),
        Op(2, "write", 1, "ok", None, 2, 7),
        Op(3, "read", None, "ok", 2, 3, 4),
        Op(4, "read", None, "ok", 1, 8, 9),
    ],
    Random(0),
)
@example(  # a failed cas needs a write without an end
    [
        Op(0, "write", 0, "ok", None, 0, 1),
        Op(1, "write", 1, "info", None, 2, math.inf),
        Op(2, "cas", [0, 2], "fail", None, 5, 6),
    ],
    Random(0),
)
@example(  # a read needs two operations without an end, one after the other
    [
        Op(0, "write", 1, "info", None, 0, math.inf),
        Op(1, "cas", [1, 2], "info", None, 1, math.inf),
        Op(2, "read", None, "ok", 2, 5, 6),
    ],
    Random(0),
)
@example(  # either of the first two explains the read of 0: the other one is still there for the last read
    [
        Op(0, "write", 0, "info", None, 1, math.inf),
        Op(1, "cas", [None, 0], "info", None, 3, math.inf),
        Op(2, "read", None, "ok", 0, 5, 7),
        Op(3, "write", 1, "ok", None, 8, 10),
        Op(4, "read", None, "ok", 0, 11, 13),
    ],
    Random(0),
)
def test_the_verdict_is_that_of_trying_all_orders(operations: list[Op], random: Random) -> None:
    verdict = certify(registers.records(operations, random))
    assert bool(verdict) == registers.has_an_order(operations)
    assert verdict.outcome == ("linearizable" if verdict else "violation")
    SEEN.update((operation.type, bool(verdict)) for operation in operations)


def test_drawn_histories_have_all_outcomes_and_both_verdicts() -> None:
    assert {(type, verdict) for type in ("ok", "info", "fail") for verdict in (True, False)} <= SEEN


@settings(max_examples=150)
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 4))
def test_a_small_history_that_happened_is_linearizable_and_a_changed_one_as_its_orders_say(
    random: Random, operations: int, processes: int
) -> None:
    happened = registers.happened(random, operations=operations, processes=processes, unknown=0.3)
    assert certify(registers.records(happened, random))
    changed = registers.mutated(random, happened)
    assert bool(certify(registers.records(changed, random))) == registers.has_an_order(changed)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 8), st.sampled_from([2, 5, 10**9]))
def test_a_long_history_that_happened_is_linearizable(seed: int, processes: int, values: int) -> None:
    random = Random(seed)
    happened = registers.happened(random, operations=200, processes=processes, unknown=0.05, values=values)
    assert certify(registers.records(happened, random))


def test_ten_thousand_operations_of_one_key_take_few_steps() -> None:
    random = Random(1)
    happened = registers.happened(random, operations=10_000, processes=5, unknown=0.01, values=10**9)
    history = registers.records(happened, random)
    assert certify(history, steps_max=100_000)
    reads = [
        place for place, operation in enumerate(happened) if operation.f == "read" and operation.result is not None
    ]
    stale = happened[reads[len(reads) // 3]].result
    happened[reads[-30]] = happened[reads[-30]]._replace(result=stale)
    verdict = certify(registers.records(happened, random), steps_max=1_000_000)
    assert verdict.outcome == "violation"
    assert verdict.smallest is not None
    assert verdict.smallest.operations <= 6


def test_times_order_a_history_whatever_the_order_of_the_list() -> None:
    assert not certify(STALE)
    assert not certify(STALE[::-1])
    earlier = [{**each, "time": each["time"] - 6} if each["process"] == 2 else each for each in STALE]
    assert not certify(earlier)  # the read is before both writes
    assert certify([{**each, "time": each["time"] - 2.5} if each["process"] == 2 else each for each in STALE])


def test_operations_that_touch_are_concurrent() -> None:
    assert not certify([*call(1, "write", 7, 7, 0, 4), *call(2, "read", None, None, 5, 6)])
    assert certify([*call(1, "write", 7, 7, 0, 5), *call(2, "read", None, None, 5, 6)])
    assert certify([*call(1, "write", 7, 7, 5, 5), *call(1, "read", None, None, 5, 5)])
    assert certify([*call(1, "write", 7, 7, 0, 5), *call(1, "read", None, 7, 5, 5)][::-1])


def test_an_invocation_without_an_end_may_take_effect_or_not() -> None:
    opened = record(1, "invoke", "write", 7, 0)
    for end in ([], [record(1, "info", "write", None, 1)]):
        assert certify([opened, *end, *call(2, "read", None, None, 2, 3), *call(2, "read", None, 7, 8, 9)])
        assert certify([opened, *end, *call(2, "read", None, None, 2, 3), *call(2, "read", None, None, 8, 9)])
        assert not certify([opened, *end, *call(2, "read", None, 7, 2, 3), *call(2, "read", None, None, 8, 9)])


def test_a_process_goes_on_after_an_unknown_outcome() -> None:
    history = [record(1, "invoke", "write", 7, 0), record(1, "info", "write", 7, 1), *call(1, "read", None, 7, 2, 3)]
    assert certify(history)


def test_a_failed_cas_found_another_value_unless_it_was_refused() -> None:
    failed = [record(1, "invoke", "cas", [None, 1], 0), record(1, "fail", "cas", [None, 1], 1)]
    assert not certify(failed)
    refused = [failed[0], {**failed[1], "error": "StoreLocked"}]
    assert certify(refused)
    assert not certify([*refused, *call(1, "read", None, 1, 2, 3)])
    assert certify([record(1, "invoke", "write", 1, 0), record(1, "fail", "write", 1, 1)])


def test_keys_of_a_map_are_judged_one_by_one() -> None:
    def moved(key: Any, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**each, "process": f"{key}{each['process']}", "value": (key, each["value"])} for each in records]

    verdict = certify([*moved("a", STALE[:4]), *moved(["b", 1], STALE), *moved("c", STALE[4:])], "map")
    assert verdict.outcome == "violation"
    assert verdict.violations == [("b", 1), "c"]
    assert verdict.operations == 6
    assert verdict.smallest is not None
    assert [each["value"][0] for each in verdict.smallest] == ["c", "c"]
    assert certify([*moved("a", STALE[:2]), *moved("b", STALE[2:4])], "map")
    swapped = [record(1, "invoke", "cas", ("a", [None, {"n": [1]}]), 0), record(1, "ok", "cas", ("a", None), 1)]
    assert certify([*swapped, *call(1, "read", ("a", None), ["a", {"n": (1,)}], 2, 3)], "map")


class Counter:
    """Counts; `add` may answer with the sum."""

    def initial(self) -> int:
        return 0

    def step(self, state: int, operation: Operation) -> list[int]:
        if operation.f == "read":
            return [state] if operation.type == "info" or operation.result == state else []
        return [state + operation.value]


class Lock:
    """Held by one process."""

    def initial(self) -> Any:
        return None

    def step(self, state: Any, operation: Operation) -> list[Any]:
        if operation.f == "acquire":
            return [operation.process] if state is None else []
        return [None] if state == operation.process else []


def test_models_of_users() -> None:
    counted = [*call(1, "add", 2, None, 0, 10), *call(2, "add", 3, None, 0, 10)]
    assert certify([*counted, *call(3, "read", None, 3, 1, 2), *call(3, "read", None, 5, 11, 12)], Counter())
    lost = certify([*counted, *call(3, "read", None, 3, 11, 12), *call(3, "read", None, 5, 13, 14)], Counter())
    assert lost.outcome == "violation"
    assert lost.smallest is not None
    assert lost.smallest.operations == 3
    failed = [record(1, "invoke", "add", 9, 0), record(1, "fail", "add", 9, 1)]
    assert certify([*failed, *call(1, "read", None, 0, 2, 3)], Counter())
    held = [*call(1, "acquire", None, None, 0, 1), *call(2, "acquire", None, None, 2, 5)]
    assert not certify(held, Lock())
    assert certify([*held, *call(1, "release", None, None, 3, 4)], Lock())
    assert certify([*held, record(1, "invoke", "release", None, 3), record(1, "info", "release", None, 9)], Lock())
    assert not certify([*held, record(1, "invoke", "release", None, 6)], Lock())


def test_a_write_of_the_value_that_is_there_may_come_later() -> None:
    verdict = certify(
        [
            *call(1, "write", 1, 1, 0, 1),
            *call(2, "write", 1, 1, 2, 9),
            *call(3, "write", 2, 2, 3, 4),
            *call(4, "read", None, 1, 5, 6),
        ]
    )
    assert verdict


def test_a_limit_of_steps_is_never_a_verdict() -> None:
    history = jepsen.etcd(2)
    verdict = certify(history, steps_max=10)
    assert verdict.outcome == "unknown"
    assert not verdict
    assert verdict.smallest is None
    assert "steps_max" in str(verdict)
    assert "steps_max" in verdict.to_html()
    assert certify(history, steps_max=1_000_000)
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(InvalidRequest, match="steps_max"):
            certify(history, steps_max=wrong)  # type: ignore[arg-type]


def test_no_operations() -> None:
    assert certify([])
    assert certify([], "map")
    assert certify(iter([record(1, "invoke", "read", None, 1)])).operations == 0


class Unhashable:
    def initial(self) -> Hashable:
        return []  # type: ignore[return-value]

    def step(self, state: Any, _: Operation) -> list[Any]:
        return [state]


WRONG: list[tuple[Any, Any, str]] = [
    ("history.jsonl", "register", "read_history"),
    ({"process": 1}, "register", "read_history"),
    ([1], "register", "A record of a history is a dict, not 1"),
    ([{"process": 1, "type": "ok"}], "register", "lacks `time`"),
    ([record(1, "done", "read", None, 1)], "register", "Unknown type 'done'"),
    ([record(1, "invoke", "read", None, math.nan)], "register", "A time is a number, not nan"),
    ([record(1, "invoke", "read", None, True)], "register", "A time is a number"),
    ([record(1, "invoke", "read", None, "1")], "register", "A time is a number"),
    ([record([1], "invoke", "read", None, 1)], "register", "A process is a number or a text"),
    ([record(1, "invoke", None, None, 1)], "register", "has no `f`"),  # type: ignore[arg-type]
    ([record(1, "ok", "read", None, 1)], "register", "ends no operation"),
    (call(1, "read", None, None, 2, 1), "register", "ends no operation"),
    ([*STALE, record(2, "ok", "read", 7, 6)], "register", "ends no operation"),
    ([record(1, "invoke", "read", None, 1), record(1, "invoke", "read", None, 2)], "register", "is open"),
    ([record(1, "invoke", "read", None, 1), record(1, "ok", "write", None, 2)], "register", "'write' ends"),
    (call(1, "swap", 1, 1, 1, 2), "register", "not 'swap'"),
    (call(1, "cas", 1, 1, 1, 2), "register", r"is \[expected, new\], not 1"),
    (call(1, "write", 1, 2, 1, 2), "register", "The end of a write has the value 2"),
    (call(1, "write", {1}, None, 1, 2), "register", "can't be hashed"),
    (call(1, "write", 1, 1, 1, 2), "map", r"is \(key, value\), not 1"),
    (call(1, "read", ("a", None), None, 1, 2), "map", "not None"),
    (call(1, "read", ("a", None), ("b", None), 1, 2), "map", "ends with key 'b'"),
    (STALE, "registers", "A model is 'register', 'map', or an object"),
    (STALE, Counter, "A model is"),
    (STALE, None, "A model is"),
    (STALE, Unhashable(), "can't be hashed"),
]


@pytest.mark.parametrize(("history", "model", "message"), WRONG)
def test_what_is_wrong_is_said(history: Any, model: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        certify(history, model)
