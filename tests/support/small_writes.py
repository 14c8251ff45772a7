"""Small writes in a thread of each caller, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kvstore
from kvstore.errors import StoreError
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from tests.support.clocks import SetClock


@contextmanager
def store_at(path: Path) -> Iterator[Store]:
    with Store(path, StoreOptions(), clock=SetClock()) as store:
        yield store
        assert store.check().ok


def written(table: kvstore.Table) -> Any:
    """Everything in the index, and all bytes of the log but for what depends on when it was synced."""
    found = []
    for bucket in range(table.buckets):
        handle = table.bucket(bucket).handle
        with handle.snapshot() as view:
            state, writers = view.state(), view.writers()
            rows = [(keys.to_list(), values.to_list()) for keys, values in view.rows(1000)]
        batches = [bytes(each.data) for each in handle.log.batches(0, state.applied_offset)]
        found.append((state._replace(synced_base=0, synced_position=0, synced_offset=0), writers, rows, batches))
    return found


def applied(table: kvstore.Table, batches: list[tuple[Any, ...]]) -> list[Any]:
    found: list[Any] = []
    for rows, is_delete, numbers, overwrite in batches:
        changes = kvstore.Changes(rows, is_delete)
        for bucket, part in table.by_bucket(changes).items():
            try:
                found.append(table.bucket(bucket).apply(part, *numbers, overwrite=overwrite))
            except StoreError as error:
                found.append((type(error), str(error)))
    return found
