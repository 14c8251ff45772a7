"""Our tables keep the rules of sequences."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kvstore.testing import SequenceMachine
from kvstore.testing.model import Row
from tests.testing.own_table import BUCKETS, OwnTable

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # disk behaviour is not under test here


class OwnMachine(SequenceMachine):
    buckets = BUCKETS
    target: OwnTable

    def create(self) -> OwnTable:
        self.directory = Path(tempfile.mkdtemp(prefix="kvstore-test-", dir=SCRATCH))
        return OwnTable(self.directory / "store")

    def bad_row(self, key: Any) -> Row:
        return {"k": key, "v": None}

    def keys_of(self, bucket: int) -> list[int]:
        return self.target.keys_of(bucket)

    def close(self) -> None:
        self.target.close()
        shutil.rmtree(self.directory)


TestOwnTable = OwnMachine.TestCase
TestOwnTable.settings = settings(max_examples=8, stateful_step_count=12)


@pytest.mark.long
def test_our_tables_keep_the_rules_for_long() -> None:
    run_state_machine_as_test(OwnMachine, settings=settings(max_examples=300, stateful_step_count=30))
