"""What changes do to a shared table is what they do to a table of a store: rows, kinds of changes, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import InvalidTargetColumns
from kvstore.replica.read.reader import ReplicaReader
from kvstore.shared.table import SharedTable
from logformat.rows.changes import Changes
from merge_engines.engine import MergeEngine
from tests.replica.objects import Objects
from tests.shared.hosts import SCHEMA, Host, created

KEYS = 6
WIDE = SCHEMA.append(pa.field("w", pa.int64()))
COLUMNS = ["_change_type", "k", "v", "w"]
Engine = str | MergeEngine


def some_changes(random: Random, names: Sequence[str], *, deletes: bool) -> Changes:
    def row() -> tuple[str, dict[str, int | None]]:
        kind = "delete" if deletes and random.random() < 0.3 else "upsert"
        values = {name: random.choice([None, random.randint(0, 9)]) for name in names[1:]}
        return kind, {"k": random.randrange(KEYS), **values}

    return Changes.of([row() for _ in range(random.randint(1, 8))], pa.schema([WIDE.field(name) for name in names]))


def changes_of(table: SharedTable) -> list[dict[str, object]]:
    found = table.at(table.newest())
    reader = ReplicaReader(table.client, found.store_id, found.definition)
    parts = [part for b, end in found.ends().items() for part in reader.changes(found.changes(b, 0, end), COLUMNS)]
    return [row for part in parts for row in part.to_pylist()]


@pytest.mark.parametrize(
    "engine",
    ["last_row", "first_row", kvstore.Versioned("v"), kvstore.Aggregate({"v": "sum", "w": "max"})],
    ids=lambda engine: engine if isinstance(engine, str) else type(engine).__name__,
)
def test_each_engine_does_what_it_does_in_a_store(engine: Engine, tmp_path: Path) -> None:
    random, deletes = Random(3), engine == "last_row"
    host = Host(created(Objects(), buckets=2, engine=engine, schema=WIDE), tmp_path / "cache")
    with kvstore.open(tmp_path / "store") as store:
        local = store.create_table("t", WIDE, "k", buckets=2, merge_engine=engine)
        for number in range(12):
            names = ["k", "v"] if engine == "last_row" and number % 3 == 1 else ["k", "v", "w"]
            columns = names if len(names) < len(WIDE) else None
            changes = some_changes(random, names, deletes=deletes)
            host.write(changes, columns=columns)
            if columns is None:
                local.apply(changes)
            else:
                for one, is_delete in zip(changes.rows.to_pylist(), changes.is_delete.to_pylist(), strict=True):
                    part = Changes.of([("delete" if is_delete else "upsert", one)], changes.rows.schema)
                    for bucket in local.buckets_of([one["k"]]):
                        local.bucket(int(bucket)).apply(part, columns=columns)
        expected = [row for part in local.changelog(columns=COLUMNS) for row in part.to_pylist()]
    by_place = sorted(changes_of(host.table), key=str)
    assert by_place == sorted(expected, key=str)
    assert by_place


def test_a_partial_update_without_the_key_is_refused(tmp_path: Path) -> None:
    host = Host(created(Objects(), schema=WIDE), tmp_path / "cache")
    with pytest.raises(InvalidTargetColumns, match="primary key"):
        host.write(Changes.of([("upsert", {"k": 1, "v": 1})], SCHEMA), columns=["v"])
    assert host.table.newest().epoch == 0
