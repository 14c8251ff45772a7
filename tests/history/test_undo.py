"""Undoing only some changes: later changes of others stay, and rows that both changed are named."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import InvalidRequest, OffsetOutOfRange, UnsupportedOperation
from tests.conftest import OpenStore
from tests.history import histories
from tests.history.histories import KEY, History, Version, form, table_of, without
from tests.support.clocks import SetClock

SCHEMA = {"k": "string", "v": "int64", "w": "int64"}


def undo_anything(history: History) -> None:
    """Undo a random range of changes of a random origin, and compare every row."""
    choose, table = history.choose, history.table
    first = choose.randrange(len(history.places))
    last = choose.randrange(first, len(history.places))
    versions = [each for some in history.versions.values() for each in some if first <= each.commit < last]
    origins = sorted({(each.writer, each.epoch) for each in versions if each.writer}, key=repr)
    writer = epoch = None
    if origins and choose.random() < 0.8:
        writer, epoch = choose.choice(origins)
        epoch = choose.choice([epoch, None])

    def is_selected(each: Version) -> bool:
        return first <= each.commit < last and writer in (None, each.writer) and epoch in (None, each.epoch)

    changes = table.undo(history.places[first], history.places[last], writer, epoch)
    expected, conflicts = dict(history.rows), set()
    for key, some in history.versions.items():
        is_conflict, row = without([each for each in some if each.commit >= first], is_selected) if any(
            each.commit >= first for each in some
        ) else (False, history.rows.get(key))
        if is_conflict:
            conflicts.add(key)
        if row is None:
            expected.pop(key, None)
        else:
            expected[key] = row
    differing = {key for key in expected.keys() | history.rows if form(expected.get(key)) != form(history.rows.get(key))}
    assert {tuple(row[name] for name in KEY) for row in changes.conflicts.to_pylist()} == conflicts
    assert {tuple(row[name] for name in KEY) for row in changes.rows.to_pylist()} == differing
    table.apply(changes)
    assert {key: form(row) for key, row in history.current().items()} == {
        key: form(row) for key, row in expected.items()
    }


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_selective_undo_agrees_with_the_model(store: kvstore.Store, buckets: int) -> None:
    for seed in histories.seeds(25):
        undo_anything(table_of(store, seed, buckets))


@pytest.mark.long
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("part", range(20))
def test_a_selective_undo_agrees_with_the_model_over_a_thousand_histories(
    store: kvstore.Store, buckets: int, part: int
) -> None:
    for seed in range(50 * part, 50 * part + 50):
        undo_anything(table_of(store, seed, buckets))
