"""A read beside a process that drops the table says so, and does not report what it finds of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.errors import NoSuchTable
from kvstore.table.reading import Reading

READS: dict[str, Callable[[kvstore.Table], Any]] = {
    "scan": lambda table: table.scan().read_all(),
    "limit": lambda table: table.scan(limit=1).read_all(),
    "count": lambda table: table.count(),
    "get": lambda table: table.get(1),
    "lookup": lambda table: table.lookup([{"k": 1}, {"k": 2}]),
    "changelog": lambda table: table.changelog().read_all(),
    "offsets": lambda table: table.offsets(),
    "ranges": lambda table: table.offset_ranges(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_of_a_table_that_is_dropped_once_it_has_begun(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[kvstore.Table], Any]
) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", {"k": "int64 not null", "n": "int64"}, "k", buckets=2).upsert([{"k": 1, "n": 1}])
    with kvstore.open(store_path) as store, kvstore.open(store_path, read_only=True) as reader:
        table = reader.table("t")
        current = Reading.current

        def dropped_after(self: Reading) -> Any:
            found = current(self)
            if "t" in store:
                store.drop_table("t")
            return found

        monkeypatch.setattr(Reading, "current", dropped_after)
        with pytest.raises(NoSuchTable, match="was dropped"):
            read(table)
