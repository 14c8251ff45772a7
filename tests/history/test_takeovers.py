"""A run that takes a name over: what was written under the name before keeps it, its run and its epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.errors import InvalidRequest
from tests.cli.commands import fine
from tests.conftest import OpenStore
from tests.console.browser import api, asking

SCHEMA = {"k": "string", "v": "int64"}


def taken_over(store: kvstore.Store, buckets: int = 1) -> kvstore.Table:
    """Epochs 0 and 1 of a run, then 1 and 2 of another, and 5 of a third."""
    table = store.create_table("t", SCHEMA, "k", buckets=buckets)
    for run, epochs in (("first", (0, 1)), ("second", (1, 2)), ("third", (5,))):
        for epoch in epochs:
            row = {"k": f"{run} {epoch}", "v": epoch}
            table.apply_epoch(kvstore.Changes.of([("upsert", row)], table.schema), "w", epoch, run, takeover=True)
    return table


KEYS = ["first 0", "first 1", "second 1", "second 2", "third 5"]


def versions(table: kvstore.Table, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(table.history(key).select(columns).to_pylist()[0].values()) for key in KEYS]


@pytest.mark.parametrize("buckets", [1, 3])
def test_history_shows_the_name_the_run_and_the_epoch(open_store: OpenStore, buckets: int) -> None:
    with open_store() as store:
        taken_over(store, buckets)
    for options in ({"read_only": True}, {}):
        with open_store(**options) as store:
            found = versions(store["t"], "writer", "run", "epoch")
            assert found == [("w", key.split()[0], int(key.split()[1])) for key in KEYS]


def test_an_undo_of_a_name_is_one_of_all_its_runs(store: kvstore.Store) -> None:
    table = taken_over(store)
    (first,), (second,) = (set(ids) for ids in (versions(table, "writer_id")[:2], versions(table, "writer_id")[2:4]))

    def undone(**arguments: Any) -> list[str]:
        return sorted(row["k"] for row in table.undo("earliest", **arguments).rows.to_pylist())

    assert undone(writer="w") == KEYS
    assert undone(writer=first[0]) == undone(writer=str(first[0])) == KEYS[:2]
    assert undone(writer="w", epoch=2) == undone(epoch=2) == ["second 2"]
    assert undone(writer=second[0], epoch=1) == ["second 1"]
    with pytest.raises(
        InvalidRequest, match="Several runs of this writer have this epoch; give the id of one"
    ) as error:
        undone(writer="w", epoch=1)
    assert error.value.where["ids"] == sorted([first[0], second[0]])


def test_a_name_that_was_dropped_is_forgotten_with_all_its_runs(store: kvstore.Store) -> None:
    table = taken_over(store)
    ids = [id for (id,) in versions(table, "writer_id")]
    store.drop_writer("w")
    assert versions(table, "writer") == [(str(id),) for id in ids]
    table.apply_epoch(kvstore.Changes.of([("upsert", {"k": "later", "v": 0})], table.schema), "w", 0)
    assert versions(table, "writer") == [(str(id),) for id in ids]


def test_pages_and_commands_show_the_name(open_store: OpenStore) -> None:
    with open_store() as store:
        taken_over(store)
        path = store.path
    assert [batch["writer"] for batch in fine("log", "show", path, "t", "--json").lines] == ["w"] * 5
    assert [batch["writer"] for batch in fine("history", path, "t", "first 0", "--json").lines] == ["w"]
    assert fine("undo", path, "t", "--start", "earliest", "--writer", "w").out.count("first") == 2
    with asking(path) as client:
        batches = api(client, "/tables/1/changes?writer=w")["batches"]
        assert [(batch["run"], batch["epoch"]) for batch in batches] == [
            (key.split()[0], int(key.split()[1])) for key in KEYS
        ]
        windows = api(client, "/tables/1/writers")["windows"]
        assert [(each["writer"], each["last_epoch"]) for each in windows] == [("w", 5), ("w", 2), ("w", 1)]
        assert [each["fenced"] is None for each in windows] == [True, False, False]


def test_the_command_lists_names_ids_and_last_epochs(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        changes = kvstore.Changes.of([("upsert", {"k": "a", "v": 1})], table.schema)
        table.apply_epoch(changes, "job", 4, run="first")
        table.apply_epoch(changes, "job", 9, run="second", takeover=True)
        table.writer("rows").close()
        (job, rows) = table.writers["job"], table.writers["rows"]
        (former,) = table.fenced_writers
    listed = fine("writers", tmp_path / "s", "t", "--json").lines[0]
    assert [(each["writer"], each["writer_id"], each["last_epoch"], each["fenced"]) for each in listed] == [
        ("job", job.writer_id, 9, False),
        ("rows", rows.writer_id, None, False),
        ("job", former, None, True),
    ]
