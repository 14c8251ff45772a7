"""Everything that writes asks whether the store leads: none of it works after another leader took its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import WriterFenced
from kvstore.meta.journal import Journal
from kvstore.repair.store import StoreRepair
from kvstore.replica import leadership
from kvstore.store.runtime import StoreRuntime, opened, shared_runtime
from kvstore.store.session import Session
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
ROW = {"k": 9, "v": 9}
CHANGES = kvstore.Changes.of([("upsert", ROW)], SCHEMA)


def flush_writer(store: kvstore.Store) -> None:
    writer = store.table("t").writer()
    writer.upsert(ROW)
    writer.flush()


WRITES: dict[str, Callable[[kvstore.Store], Any]] = {
    "upsert": lambda store: store.table("t").upsert([ROW]),
    "delete": lambda store: store.table("t").delete([1]),
    "apply": lambda store: store.table("t").apply(CHANGES),
    "apply_epoch": lambda store: store.table("t").apply_epoch(CHANGES, "e", 0),
    "bucket.apply": lambda store: store.table("t").bucket(0).apply(CHANGES),
    "bucket.submit": lambda store: store.table("t").bucket(0).submit(CHANGES).result(),
    "writer.flush": flush_writer,
    "named writer": lambda store: store.table("t").writer("n"),
    "create_table": lambda store: store.create_table("u", SCHEMA, "k"),
    "add_columns": lambda store: store.add_columns("t", [pa.field("w", pa.int64())]),
    "rename_table": lambda store: store.rename_table("t", "u"),
    "alter_table": lambda store: store.alter_table("t", compression=None),
    "drop_table": lambda store: store.drop_table("t"),
    "drop_writer": lambda store: store.drop_writer("old"),
    "new_writer_id": lambda store: store.new_writer_id(),
    "consumer.commit": lambda store: store.consumer("c").commit("t", {0: 0}),
    "drop_consumer": lambda store: store.drop_consumer("old"),
    "create_job": lambda store: store.create_job("j", source=store.path, format="csv", table="t"),
    "add_replica": lambda store: store.add_replica(str(store.path.parent / "r2"), "r2"),
    "drop_replica": lambda store: store.drop_replica("r"),
    "ship": lambda store: store.replica("r").ship(),
}


@pytest.fixture
def fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[kvstore.Store]:
    """A store that was open while its copy was promoted, and has not written since."""
    monkeypatch.setattr(leadership, "LEASE_SECONDS", 0.05)
    monkeypatch.setattr(leadership, "WAIT_SECONDS", 60.0)  # however slow the machine is
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([{"k": 1, "v": 1}])
        table.apply_epoch(kvstore.Changes.of([("upsert", {"k": 2, "v": 2})], SCHEMA), "old", 0)
        store.consumer("old").commit("t", {0: 0})
        store.flush()
        store.add_replica(str(tmp_path / "r"), "r").ship()
        kvstore.follow(str(tmp_path / "r"), tmp_path / "c").close()
        kvstore.promote(tmp_path / "c")
        yield store


@pytest.mark.parametrize("name", WRITES)
def test_a_former_leader_refuses_every_write(fenced: kvstore.Store, name: str) -> None:
    with pytest.raises(WriterFenced):
        WRITES[name](fenced)
    assert fenced.list_tables() == ["t"]
    assert rows_of(fenced.table("t")) == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]
    assert fenced.consumers == {"old": {"t": {0: 0}}}
    assert list(fenced.replicas) == ["r"]
    assert fenced.list_jobs() == []


@pytest.mark.parametrize("callee", [Journal, StoreRuntime, shared_runtime, opened, Session, StoreRepair])
def test_leadership_has_no_default(callee: Callable[..., Any]) -> None:
    """One that is forgotten would let a former leader write."""
    parameter = inspect.signature(callee).parameters["leadership"]
    assert parameter.default is inspect.Parameter.empty
