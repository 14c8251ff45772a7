"""Any history of a table of any engine and options agrees with the model, which applies one row at a time."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support.engine_tables import Machine
from tests.support.examples import slow

pytestmark = pytest.mark.usefixtures("both_ways")


TestEngines = Machine.TestCase
TestEngines.settings = slow(max(50, settings().max_examples // 2), stateful_step_count=20)
