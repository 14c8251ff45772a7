"""Any history of batches, duplicates, gaps, reopens and lost indexes agrees with the model."""

from __future__ import annotations

import pytest

from kvstore.bucket.merge import native
from tests.support.examples import slow
from tests.support.table_machines import TableMachine, TextKeyMachine

pytestmark = pytest.mark.usefixtures("both_ways", "small_runs")


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two rows are kept as larger ones are."""
    monkeypatch.setattr(native, "RUN_KEYS", 2)


TestIntKey = TableMachine.TestCase
TestTextKey = TextKeyMachine.TestCase
TestIntKey.settings = TestTextKey.settings = slow(40, stateful_step_count=25)
