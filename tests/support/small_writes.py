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
    all_buckets = []
    for bucket in range(table.buckets):
        handle = table.bucket(bucket).handle
        with handle.snapshot() as view:
            state, writers = view.state(), view.writers()
            # How many come together depends on what is merged.
            rows = [pair for found in view.rows(1000) for pair in zip(*(each.to_list() for each in found), strict=True)]
        batches = [bytes(each.data) for each in handle.log.batches(0, state.applied_offset)]
        all_buckets.append((state._replace(synced_base=0, synced_position=0, synced_offset=0), writers, rows, batches))
    return all_buckets


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
