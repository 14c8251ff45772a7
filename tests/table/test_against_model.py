"""Any history of batches, duplicates, gaps, reopens and lost indexes agrees with the model."""

from __future__ import annotations

import pytest

from tests.support.examples import slow
from tests.support.table_machines import TableMachine, TextKeyMachine

pytestmark = pytest.mark.usefixtures("both_ways")


TestIntKey = TableMachine.TestCase
TestTextKey = TextKeyMachine.TestCase
TestIntKey.settings = TestTextKey.settings = slow(40, stateful_step_count=25)
