"""Names that users choose are text in the catalog, never a path: whatever they are, they lead nowhere else.

Two names are one only if they are the same to the letter: a disk that folds case, or composes accents, has no say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import InvalidRequest

SCHEMA = pa.schema([pa.field("k", pa.int64(), False)])
POSSIBLE = (
    *("..", ".", "../../x", "/etc/passwd", "a/b", "a\\b", "CON", "nul.txt", "~", "-rf", "*", "%2e%2e", "a b", "'", '"'),
    *("table", "TABLE", "Table", "ﬁ", "fi", "é", "e\u0301", "日本", "😀", "x" * 255, "é" * 127, "STORE", "1", "LOCK"),
)
IMPOSSIBLE = ("", "\0", "a\0b", "a\nb", "a\rb", "\x1b[31m", "\u202egnp", "\ud800", "x" * 256, "é" * 128, b"a", None, 1)


def create_tables(store: kvstore.Store, name: Any) -> None:
    store.create_table(name, SCHEMA, "k")


def name_consumers(store: kvstore.Store, name: Any) -> None:
    store.consumer(name).commit("t", {0: 0})


def name_writers(store: kvstore.Store, name: Any) -> None:
    store.table("t").apply_epoch(kvstore.Changes.of([("upsert", {"k": 1})], SCHEMA), name, 0)


def name_jobs(store: kvstore.Store, name: Any) -> None:
    store.create_job(name, source=str(store.path.parent), format="csv", table="t")


def name_replicas(store: kvstore.Store, name: Any) -> None:
    store.add_replica(str(store.path.parent / "replica"), name)


KINDS = {each.__name__: each for each in (create_tables, name_consumers, name_writers, name_jobs)}


@pytest.fixture
def store(tmp_path: Path) -> kvstore.Store:
    (tmp_path / "inner").mkdir()
    opened = kvstore.open(tmp_path / "inner/store")
    opened.create_table("t", SCHEMA, "k")
    return opened


def is_known(table: kvstore.Table, writer: str) -> bool:
    """Whether what a writer sends again is a duplicate."""
    before = table.offsets()
    table.apply_epoch(kvstore.Changes.of([("upsert", {"k": 1})], SCHEMA), writer, 0)
    return table.offsets() == before


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
def test_every_possible_name_is_one_of_its_own(kind: str, store: kvstore.Store, tmp_path: Path) -> None:
    for name in POSSIBLE:
        KINDS[kind](store, name)
    store.close()
    # Paths have letters of ours and numbers alone.
    inside = files(tmp_path / "inner/store")
    assert not [path for path in inside if not all(c.isascii() and (c.isalnum() or c in "._-/") for c in path)]
    assert files(tmp_path) == {"inner", "inner/store", *(f"inner/store/{path}" for path in inside)}
    with kvstore.open(tmp_path / "inner/store") as again:
        known: dict[str, Callable[[], Any]] = {
            "create_tables": again.list_tables,
            "name_consumers": lambda: list(again.consumers),
            "name_writers": lambda: [name for name in POSSIBLE if is_known(again.table("t"), name)],
            "name_jobs": again.list_jobs,
        }
        assert sorted({*known[kind]()} - {"t"}) == sorted(POSSIBLE)
        assert again.check().ok


@pytest.mark.parametrize("kind", [*KINDS, "name_replicas"])
def test_impossible_names_are_refused(kind: str, store: kvstore.Store, tmp_path: Path) -> None:
    call = {**KINDS, "name_replicas": name_replicas}[kind]
    before = files(tmp_path)
    for name in IMPOSSIBLE:
        if name is None and kind == "name_replicas":
            continue  # its URL is its name then
        with pytest.raises(InvalidRequest):
            call(store, name)
    assert files(tmp_path) - before <= {"inner/store/staging"}
    store.close()
