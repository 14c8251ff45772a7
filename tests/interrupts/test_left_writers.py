"""Ctrl-C at each moment in which a writer is closed, by a program that then leaves the writer: its thread ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from tests.interrupts.moments import Moments

SECONDS = 60.0
"""More than a writer ever needs, however busy the machine is."""


@pytest.mark.filterwarnings("ignore:TableWriter was not closed", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_thread_of_a_writer_that_is_left_ends(tmp_path: Path) -> None:
    moments = Moments()
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")

        def interrupted(moment: int) -> None:
            writer = table.writer()
            writer.upsert({"k": 1})
            moments.interrupt(writer.close, moment)

        found = 0
        while not found:  # Python 3.12 traces nothing of the first call in a process
            found = moments.of(table.writer().close)
        for moment in range(found):
            interrupted(moment)
            for thread in threading.enumerate():
                if thread.name == "kvstore-writer":
                    thread.join(SECONDS)
                    assert not thread.is_alive(), moment
