"""``kvstore shared``."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.replica.client import ObjectStore
from tests.cli.commands import fine, run
from tests.shared.hosts import Host, created, upserts


def test_upkeep_of_a_shared_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "place"
    host = Host(created(ObjectStore(place.as_uri(), create=True)), tmp_path / "cache")
    host.write(upserts([1], 1))
    (taken,) = fine("shared", "snapshot", place, "t", "--json").lines
    assert (taken["epoch"], taken["buckets"]) == (2, [0])
    assert "buckets  []" in fine("shared", "snapshot", place, "t").out
    (checked,) = fine("shared", "check", place, "t", "--json").lines
    assert (checked["ok"], checked["epochs"], checked["objects"]) == (True, 3, 2)
    (removed,) = fine("shared", "vacuum", place, "t", "--dry-run", "--json").lines
    assert (removed["epochs"], removed["objects"], removed["first_epoch"]) == (0, 0, 0)
    (range,) = place.rglob("*.range")
    range.write_bytes(range.read_bytes()[:-1] + b"x")
    done = run("shared", "check", place, "t")
    assert done.code == 1
    assert f"wrong: BAD {range.relative_to(place)} " in done.out
    for arguments, said in (
        (["snapshot", place, "u"], "no shared table of that name"),
        (["check", tmp_path / "nowhere", "t"], "There is no such directory"),
        (["vacuum", place, "t", "--older-than-days", "0.01"], "an hour or more"),
        (["vacuum", place, "t", "--retain-last", "0"], "retain_last"),
    ):
        done = run("shared", *arguments)
        assert done.code
        assert said in done.err
