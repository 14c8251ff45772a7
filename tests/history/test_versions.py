"""The history of a row: the fold of its changes, and who made each of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.maintenance import Maintenance
from kvstore.errors import InvalidRequest, OffsetOutOfRange, SchemaMismatch, UnsupportedOperation
from tests.conftest import OpenStore
from tests.history.histories import KEYS, History, form, table_of

SCHEMA = {"k": "string", "v": "int64"}


def compare(history: History) -> None:
    """The history of every key is the fold of the changelog, and has the writers that the model has."""
    table, choose = history.table, history.choose
    start = choose.choice(["earliest", choose.choice(history.places)])
    first = dict.fromkeys(range(table.buckets), 0) if start == "earliest" else start
    folded: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    for change in table.binlog(start).read_all().to_pylist():
        row = change["after"] or change["before"]
        folded.setdefault((row["k"], row["n"]), []).append(tuple(map(form, change.values())))
    for key in KEYS:
        versions = table.history(key, start).to_pylist()
        names = ("_bucket", "_log_offset", "_change_type", "_commit_timestamp", "_commit_version", "before", "after")
        assert [tuple(form(each[name]) for name in names) for each in versions] == folded.get(key, [])
        bucket = table.buckets_of([key])[0]
        expected = [
            each for each in history.versions.get(key, []) if history.places[each.commit][bucket] >= first[bucket]
        ]
        assert [(each["writer"], each["epoch"]) for each in versions] == [
            (each.writer, each.epoch) for each in expected
        ]
        if versions:
            assert form(versions[-1]["after"]) == form(history.rows.get(key))


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_history_is_the_fold_of_the_changelog(store: kvstore.Store, buckets: int) -> None:
    for seed in range(5):
        with table_of(store, seed, buckets) as history:
            compare(history)


@pytest.mark.long
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_histories_are_folds_of_the_changelog(store: kvstore.Store, buckets: int, part: int) -> None:
    for seed in range(50 * part, 50 * part + 50):
        with table_of(store, seed, buckets) as history:
            compare(history)


def test_each_version_says_who_wrote_it(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": "a", "v": 0})
    with table.writer("batches") as writer:
        writer.upsert({"k": "a", "v": 1})
    changes = kvstore.Changes.of([("upsert", {"k": "a", "v": 2}), ("upsert", {"k": "b", "v": 2})], table.schema)
    table.apply_epoch(changes, writer="etl", epoch=41, run="query 9")
    table.bucket(0).apply(kvstore.Changes.of([("delete", {"k": "a"})], table.schema), 7, 0, writer_epoch=5)
    names = ("_log_offset", "_change_type", "before", "after", "writer", "epoch", "sequence", "run")
    found = [tuple(each[name] for name in names) for each in table.history("a").to_pylist()]
    assert found == [
        (0, "insert", None, {"k": "a", "v": 0}, None, None, None, None),
        (2, "update_postimage", {"k": "a", "v": 0}, {"k": "a", "v": 1}, "batches", 0, 0, None),
        (4, "update_postimage", {"k": "a", "v": 1}, {"k": "a", "v": 2}, "etl", 41, 0, "query 9"),
        (6, "delete", {"k": "a", "v": 2}, None, "7", 5, 0, None),
    ]
    assert table.history("a")["writer_id"].to_pylist()[-1] == 7
    assert table.history("no such key").num_rows == 0
    assert table.history("no such key").schema == table.history("a").schema
    for start in (1, 2):  # both halves of an update, and its second half
        (version, *_) = table.history({"k": "a"}, start).to_pylist()
        assert (version["_log_offset"], version["before"]) == (2, {"k": "a", "v": 0})


def test_a_dropped_name_leaves_the_id_of_the_writer(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.apply_epoch(kvstore.Changes.of([("upsert", {"k": "a", "v": 1})], table.schema), writer="etl", epoch=1)
    id = table.writers["etl"].writer_id
    store.drop_writer("etl")
    assert table.history("a")["writer"].to_pylist() == [str(id)]
    table.undo(0, writer=id)  # still selects its changes
    with pytest.raises(InvalidRequest):
        table.undo(0, writer="etl")


def test_rows_of_a_job_name_the_job_its_task_and_its_file(store: kvstore.Store, tmp_path: Path) -> None:
    table = store.create_table("t", SCHEMA, "k")
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.csv").write_text("k,v\na,1\n")
    job = store.create_job("landing", table="t", source=str(source), format="csv")
    job.run()
    (source / "2.csv").write_text("k,v\na,2\n")
    (source / "3.csv").write_text("k,v\nb,2\n")
    job.run()
    found = [(each["job"], each["task"], each["file"]) for each in table.history("a").to_pylist()]
    assert found == [("landing", 1, "1.csv"), ("landing", 2, "2.csv … 3.csv (2 files)")]
    table.apply(table.undo("earliest", job="landing", task=2))
    assert list(table) == [{"k": "a", "v": 1}]


def test_a_history_begins_where_the_log_begins(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maintenance, "begin", lambda _: None)  # nothing expires but by the call below
    store = open_store(segment_bytes_max=1_000, log_bytes_max=3_000)
    table = store.create_table("t", SCHEMA, "k")
    for value in range(30):
        table.upsert([{"k": "a", "v": value}, *({"k": str(other), "v": value} for other in range(20))])
    table.flush()
    table.bucket(0).handle.retain()
    begins = table.offsets()[0][0]
    assert begins > 0
    history = table.history("a")
    assert int(history.schema.metadata[b"log_start"]) == begins
    assert history["_log_offset"][0].as_py() >= begins
    assert history["before"][0].as_py() is not None
    with pytest.raises(OffsetOutOfRange, match=str(begins)):
        table.history("a", start=0)


def test_columns_that_are_added_later_are_null_in_earlier_versions(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": "a", "v": 1})
    store.add_columns("t", [pa.field("w", pa.int64())])
    table.upsert({"k": "a", "v": 1, "w": 5})
    assert [each["after"]["w"] for each in table.history("a").to_pylist()] == [None, 5]
    (change,) = table.undo(1, end=3).rows.to_pylist()
    assert change == {"k": "a", "v": 1, "w": None}


def test_what_has_no_history(store: kvstore.Store) -> None:
    log = store.create_table("log", SCHEMA)
    wal = store.create_table("wal", SCHEMA, "k", changelog_image="wal")
    table = store.create_table("t", SCHEMA, "k")
    with pytest.raises(UnsupportedOperation, match="no key"):
        log.history("a")
    with pytest.raises(UnsupportedOperation, match="WAL image"):
        wal.history("a")
    with pytest.raises(SchemaMismatch):
        table.history(7)
    with pytest.raises(InvalidRequest, match="begins at"):
        table.history("a", start="full")
    with pytest.raises(OffsetOutOfRange):
        table.history("a", start=1)
