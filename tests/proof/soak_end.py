"""The end of a soak: the store, its changelogs, its replicas and its copy are what was acknowledged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import kvstore
from tests.proof.soak import (
    COPY,
    FOLLOWED,
    REPLICA,
    SETTINGS,
    STORE,
    WRITERS,
    Diary,
    Followed,
    operations_of,
    steps_of,
    table_of,
)

Rows = dict[int, int]
_PULLS_MAX = 50


def expected_rows(work: Path) -> tuple[dict[str, Rows], int]:
    """By table, rows as the diaries of the writers say; and how many steps were acknowledged."""
    tables: dict[str, Rows] = {name: {} for name in ("shared", "sums", *(f"own {n}" for n in range(WRITERS)))}
    count = 0
    for writer in range(WRITERS):
        begun, done = steps_of(Diary(work / f"writer {writer}.diary").lines)
        assert begun == len(done), f"writer {writer} was not ended properly"
        count += len(done)
        for step in range(len(done)):
            name, _ = table_of(writer, step)
            rows = tables[name]
            for word, row in operations_of(writer, step):
                if word == "delete":
                    rows.pop(row["k"], None)
                else:
                    rows[row["k"]] = row["v"] + (rows.get(row["k"], 0) if name == "sums" else 0)
    return tables, count


def verify(work: Path, replicas: list[str]) -> Counter[str]:
    """Compare everything; how much was compared.

    Raises:
        AssertionError: Something differs.
    """
    expected, steps = expected_rows(work)
    counted = Counter(steps=steps)
    with kvstore.open(work / STORE, **SETTINGS) as store:
        assert not store.check().findings
        _compare(store, expected)
        for name in FOLLOWED:
            counted["changes followed"] += _compare_followed(work, store, name, expected[name])
        store.flush()
        for name in replicas:
            replica = store.replica(name)
            replica.ship()
            assert not replica.check().findings
            place = work / f"restored {len(counted)}"
            kvstore.restore(replica.url, place)
            with kvstore.open(place) as restored:
                _same(store, restored, expected)
            counted["replicas restored"] += 1
        with kvstore.follow(f"file://{work / REPLICA}", work / COPY) as follower:
            for _ in range(_PULLS_MAX):
                if not follower.pull():
                    break
        with kvstore.open(work / COPY, read_only=True) as copy:
            _same(store, copy, expected)
    return counted


def _compare(store: kvstore.Store, expected: dict[str, Rows]) -> None:
    for name, rows in expected.items():
        table = store.table(name)
        found = {row["k"]: row["v"] for row in table.scan(columns=["k", "v"]).read_all().to_pylist()}
        assert found == rows, f"rows of {name}: {found}, not {rows}"
        folded: dict[int, Any] = {}
        for batch in table.changelog("full", columns=["_change_type", "k", "v"]):
            _fold(folded, ((row["_change_type"], row["k"], row["v"]) for row in batch.to_pylist()))
        assert folded == rows, f"changes of {name}, folded: {folded}, not {rows}"


def _fold(rows: Rows, changes: Any) -> None:
    for kind, key, value in changes:
        if kind == "delete":
            del rows[key]
        elif kind in ("insert", "update_postimage"):
            rows[key] = value


def _compare_followed(work: Path, store: kvstore.Store, name: str, rows: Rows) -> int:
    """A follower that was killed again and again has every change once."""
    followed = Followed(work, name)
    for _ in followed.take(store, waits=False):
        pass
    changes = followed.changes
    offsets: dict[int, list[int]] = {}
    for bucket, offset, *_ in changes:
        offsets.setdefault(bucket, []).append(offset)
    for bucket, found in offsets.items():
        assert found == sorted(set(found)), f"changes of {name}, bucket {bucket} were read twice"
    folded: Rows = {}
    _fold(folded, (change[2:] for change in changes))
    assert folded == rows, f"changes of {name} as they were followed: {folded}, not {rows}"
    ends = {bucket: end for bucket, (_, end) in store.table(name).offsets().items()}
    assert all(found[-1] < ends[bucket] for bucket, found in offsets.items())
    return len(changes)


def _same(store: kvstore.Store, other: kvstore.Store, expected: dict[str, Rows]) -> None:
    """A replica or copy is the store."""
    assert other.list_tables() == store.list_tables()
    assert not other.check().findings
    for name in store.list_tables():
        one, two = store.table(name), other.table(name)
        assert two.schema == one.schema, name
        ends = [{bucket: end for bucket, (_, end) in each.offsets().items()} for each in (one, two)]
        assert ends[0] == ends[1], f"{name} ends at {ends[1]}, not {ends[0]}"
        assert two.scan().read_all() == one.scan().read_all(), f"rows of {name}"
    _compare(other, expected)
