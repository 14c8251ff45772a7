"""Our tables keep the rules of sequences; a rule that is taken out of them is missed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvstore.errors import OutOfOrderSequence
from kvstore.log import writer_state
from kvstore.log.writer_state import WriterStates
from kvstore.testing import RuleBroken, SequenceMachine
from kvstore.testing.model import Row
from logformat.ids import Epoch, Sequence, WriterId
from logformat.log.writer_entry import RememberedBatch, WriterEntry
from tests.testing.own_table import BUCKETS, OwnTable

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # disk behaviour is not under test here


class OwnMachine(SequenceMachine):
    checked = True
    """Whether the store is checked at the end."""
    buckets = BUCKETS
    target: OwnTable

    def create(self) -> OwnTable:
        self.directory = Path(tempfile.mkdtemp(prefix="kvstore-test-", dir=SCRATCH))
        return OwnTable(self.directory / "store")

    def bad_row(self) -> Row:
        return {"v": None}

    def keys_of(self, bucket: int) -> list[int]:
        return self.target.keys_of(bucket)

    def close(self) -> None:
        self.target.close(checked=self.checked)
        shutil.rmtree(self.directory)


TestOwnTable = OwnMachine.TestCase
TestOwnTable.settings = settings(max_examples=5, stateful_step_count=12)


@pytest.mark.long
def test_our_tables_keep_the_rules_for_long() -> None:
    run_state_machine_as_test(OwnMachine, settings=settings(max_examples=100, stateful_step_count=30))


class UncheckedMachine(OwnMachine):
    checked = False


Plant = Callable[[pytest.MonkeyPatch], None]


def short_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writer_state, "WINDOW", 4)


def no_wrap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writer_state, "next_sequence", lambda current: Sequence(current + 1))


def gaps_are_written(patch: pytest.MonkeyPatch) -> None:
    check = WriterStates.check

    def tolerant(self: WriterStates, *batch: Any, **numbers: Any) -> RememberedBatch | None:
        with suppress(OutOfOrderSequence):
            return check(self, *batch, **numbers)
        return None

    patch.setattr(WriterStates, "check", tolerant)


def duplicates_are_written(patch: pytest.MonkeyPatch) -> None:
    check = WriterStates.check

    def forgetful(self: WriterStates, *batch: Any, **numbers: Any) -> None:
        check(self, *batch, **numbers)

    patch.setattr(WriterStates, "check", forgetful)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    check = WriterStates.check

    def open(self: WriterStates, writer_id: Any, sequence: Any, _: Epoch, **numbers: Any) -> RememberedBatch | None:
        return check(self, writer_id, sequence, Epoch(2**31 - 1), **numbers)

    patch.setattr(WriterStates, "check", open)


def windows_are_lost(patch: pytest.MonkeyPatch) -> None:
    """A bucket that is recovered remembers one batch of each writer."""
    begin = WriterStates.__init__

    def forgetful(self: WriterStates, writers: Mapping[WriterId, WriterEntry]) -> None:
        begin(self, {id: entry._replace(batches=entry.batches[-1:]) for id, entry in writers.items()})

    patch.setattr(WriterStates, "__init__", forgetful)


@pytest.mark.parametrize(
    "plant",
    [
        gaps_are_written,
        *(
            pytest.param(plant, marks=pytest.mark.long)
            for plant in (short_window, no_wrap, duplicates_are_written, no_fence, windows_are_lost)
        ),
    ],
)
def test_a_rule_that_is_taken_out_of_our_tables_is_missed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    find = settings(max_examples=50, stateful_step_count=12, database=None, phases=[Phase.generate])
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(UncheckedMachine, settings=settings(find, report_multiple_bugs=False))
