"""``changelog --follow``: changes as they come, until it is interrupted."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pyarrow as pa

import kvstore
from tests.cli.commands import process


def test_changes_are_printed_as_they_come_until_interrupted(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
        table.upsert({"k": 0})
        table.flush()
        following = process("changelog", store.path, "t", "--follow", "--columns", "_log_offset,k", "--json")
        assert following.stdout is not None
        try:
            for k in range(3):
                assert json.loads(following.stdout.readline()) == {"_log_offset": k, "k": k}
                table.upsert({"k": k + 1})
            assert json.loads(following.stdout.readline()) == {"_log_offset": 3, "k": 3}
            following.send_signal(signal.SIGINT)
            out, err = following.communicate(timeout=600)
        finally:
            following.kill()
    assert (following.returncode, out, err) == (130, "", "")


def test_a_reader_that_closes_the_pipe_ends_it(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
        table.upsert({"k": 0})
        table.flush()
        following = process("changelog", store.path, "t", "-f")
        assert following.stdout is not None
        try:
            following.stdout.readline()
            following.stdout.close()
            table.upsert({"k": 1})
            table.flush()
            assert following.wait(600) == 0
            assert following.stderr is not None
            with following.stderr as errors:
                assert errors.read() == ""
        finally:
            following.kill()
