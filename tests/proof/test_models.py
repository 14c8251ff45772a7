"""Tables against a model of one row at a time, for ten thousand histories of fifty steps.

The machines are those of ``tests/table``; here they run longer, and look at the whole table less often.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.engine_tables import Machine as EngineMachine
from tests.support.retention import RetentionMachine
from tests.support.table_machines import TableMachine, TextKeyMachine

EVERY = 5


class SeldomCompared:
    """Every fifth step is compared; between them what the steps themselves ask for is."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def compare(self) -> None:
        self._steps += 1
        if not self._steps % EVERY:
            super().compare()  # type: ignore[misc]


class Tables(SeldomCompared, TableMachine):
    """Batches, duplicates, gaps, lost indexes and former times."""


class TextKeys(SeldomCompared, TextKeyMachine):
    """The same with a key of two columns."""


class Retained(SeldomCompared, RetentionMachine):
    """The same while the log expires."""


PARTS: dict[type[RuleBasedStateMachine], int] = {Tables: 6, TextKeys: 5, Retained: 5, EngineMachine: 4}
HISTORIES = 500  # Hypothesis remembers all of a run


@pytest.mark.long
@pytest.mark.parametrize(("machine", "part"), [(each, part) for each, parts in PARTS.items() for part in range(parts)])
def test_many_histories(machine: type[RuleBasedStateMachine], part: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=HISTORIES, stateful_step_count=50))
