"""The machine finds every bug that is planted into a small store, and none in the store without them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvstore.errors import InvalidRequest
from kvstore.testing import Answer, EngineModel, Model, Refused, RuleBroken, Rules, SequenceMachine
from kvstore.testing.model import Operation, Row
from tests.testing import planted
from tests.testing.toy import BadRow, Fenced, OutOfOrder, Toy, ToyBucket

FIND = settings(
    max_examples=200, stateful_step_count=20, database=None, phases=[Phase.generate], report_multiple_bugs=False
)
"""Stops at the first failure, and does not shorten it."""
Bug = type[Toy] | type[ToyBucket]
BUGS: list[Bug] = [*planted.BUCKETS, *planted.STORES]
SOME: list[Bug] = [
    *(planted.ShortWindow, planted.LongWindow, planted.WindowIsSharedByWriters, planted.WindowIsNotStored),
    *(planted.EmptyBatchTakesNoOffset, planted.DuplicateIsApplied, planted.DuplicateGetsNewOffsets),
    *(planted.GapIsHalfApplied, planted.RefusedBatchTakesTheSequence, planted.SequencesAreNotStored, planted.NoWrap),
    *(planted.NoFence, planted.OpeningANameFencesLate, planted.EpochIsHalfApplied),
]


class ToyMachine(SequenceMachine):
    buckets = 2
    out_of_order = OutOfOrder
    fenced = Fenced
    refused = BadRow
    toy: type[Toy] = Toy

    def create(self) -> Toy:
        return self.toy(self.buckets)

    def bad_row(self) -> Row:
        return {"v": None}


def machine_of(bug: Bug) -> type[SequenceMachine]:
    """The machine of a toy store with a bug, in the store or in its buckets."""
    toy = bug if issubclass(bug, Toy) else type(bug.__name__, (Toy,), {"bucket_class": bug})
    return type(bug.__name__, (ToyMachine,), {"toy": toy})


TestToy = ToyMachine.TestCase
TestToy.settings = settings(max_examples=30, stateful_step_count=20)


@pytest.mark.parametrize("bug", SOME, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(machine_of(bug), settings=FIND)


@pytest.mark.long
@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_every_planted_bug_is_found_with_any_seed(bug: Bug, attempt: int) -> None:
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(machine_of(bug), settings=settings(FIND, max_examples=1000, derandomize=False))


@pytest.mark.long
def test_a_store_without_bugs_keeps_the_rules_for_long() -> None:
    run_state_machine_as_test(ToyMachine, settings=settings(max_examples=500, stateful_step_count=50))


@pytest.mark.parametrize("wrong", [{"image": "none"}, {"buckets": 5}, {"buckets": 0}, {"writers": 0}])
def test_a_machine_that_is_set_up_wrongly_says_so(wrong: dict[str, Any]) -> None:
    machine = type("Wrong", (ToyMachine,), wrong)
    with pytest.raises(InvalidRequest, match="1 to 4 buckets"):
        run_state_machine_as_test(machine, settings=FIND)


def test_a_machine_without_a_target_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="must have `create`"):
        run_state_machine_as_test(SequenceMachine, settings=FIND)


class LogOfOneChange:
    """A store that logs one change for an update, or only appends: the model, told so."""

    def __init__(self, image: str) -> None:
        key = () if image == "append" else ("k",)
        schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
        self.models = [Model(key, rules=Rules(EngineModel("last_row", schema, key), image=image))]

    def append(self, operations: list[Operation], *, bucket: int, writer: int, sequence: int, epoch: int) -> Answer:
        try:
            return self.models[bucket].apply(operations, writer, sequence, epoch)
        except Refused as refused:
            raise refused.error("Refused.") from None

    def changes(self, bucket: int) -> list[tuple[int, str, Row]]:
        return [(at, "delete" if kind == "delete" else "upsert", row) for at, kind, row, _ in self.models[bucket].log]


@pytest.mark.parametrize("image", ["wal", "append"])
def test_stores_of_other_kinds_keep_the_rules(image: str) -> None:
    members = {"image": image, "create": lambda _: LogOfOneChange(image)}
    run_state_machine_as_test(type("Other", (SequenceMachine,), members), settings=settings(FIND, max_examples=15))


def test_a_store_of_another_kind_than_the_machine_expects_is_found() -> None:
    members = {"create": lambda _: LogOfOneChange("wal")}
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(type("Other", (SequenceMachine,), members), settings=FIND)
