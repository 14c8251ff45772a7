"""A shared table that an earlier version wrote is what it was, and goes on."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from kvstore.replica.client import ObjectStore
from kvstore.shared.check import report_of
from kvstore.shared.table import SharedTable
from logformat.replica.shared_table import has_ranges
from tests.golden.write_shared import KEYS, WRITES
from tests.shared.hosts import Host, read, upserts

FILES = sorted(Path(__file__).parent.glob("shared-*.tar.xz"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_it_is_what_it_was_and_goes_on(file: Path, tmp_path: Path) -> None:
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    client = ObjectStore((tmp_path / "place").as_uri())
    host = Host(SharedTable.find("memory://x", client, "t"), tmp_path / "cache")
    newest = host.table.newest()
    assert set(newest.writers) == {f"write {number}" for number in range(WRITES)}
    assert read(host.table, tmp_path)[0] == dict.fromkeys(range(KEYS), 2**WRITES - 1)
    assert report_of(host.table)
    assert bool(newest.snapshots[0]) == (file.name != "shared-1.tar.xz")
    assert bool(newest.start(0)) == (file.name not in ("shared-1.tar.xz", "shared-2.tar.xz"))
    for epoch in range(newest.epoch + 1):
        found = host.table.epoch(epoch)
        assert found is not None
        assert all(map(has_ranges, newest.ranges, found.ranges))
    assert host.write(upserts([0], 1), "write 7").duplicated
    host.write(upserts([0], 1), "one more")
    assert read(host.table, tmp_path)[0] == dict.fromkeys(range(KEYS), 2**WRITES - 1) | {0: 2**WRITES}


def test_there_are_some() -> None:
    assert FILES
