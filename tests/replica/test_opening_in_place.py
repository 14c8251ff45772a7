"""A replica is opened by a path or URL, in Python and by commands; what can't be opened says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore.errors import InvalidRequest, UnsupportedOperation
from tests.cli.commands import fine, run
from tests.replica.objects import SCHEMA


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": 2})
        store.add_replica(str(tmp_path / "r"), "r").ship()
    return tmp_path / "r"


def test_a_replica_is_opened_to_be_read_only(replica: Path) -> None:
    for place in (replica, str(replica), replica.as_uri()):
        with pytest.raises(UnsupportedOperation, match="read_only=True"):
            kvstore.open(place)
        with pytest.raises(InvalidRequest, match="durability must be one of"):
            kvstore.open(place, True, "nonsense")  # type: ignore[arg-type]
        kvstore.open(place, True, "interval").close()


def test_commands_read_the_directory_of_a_replica_and_no_url(replica: Path) -> None:
    found = fine("describe", replica, "t", "--json").lines[0]
    assert (found["rows"], found["consumers"]) == (1, [])
    assert fine("check", replica, "--json").lines[0]["buckets"] == [{"table": "t", "bucket": 0, "findings": []}]
    assert "rows" not in fine("check", replica).out, "it counts none"
    assert "replica at a URL is read in Python" in run("describe", replica.as_uri(), "t").err
