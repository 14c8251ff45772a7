"""Everyday uses of a table: from plain Python, pandas, Polars and DuckDB. Each is one function, and checks itself.

Run it: it prints the uses with what they came to. Every use gets a store of its own with a table ``files``.
"""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import datetime as dt
import enum
import tempfile
import uuid
from collections.abc import Callable
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pydantic
from pyarrow import csv as pacsv, parquet

import kvstore
from kvstore.errors import SchemaMismatch

Use = Callable[[kvstore.Store, kvstore.Table], object]
USES: list[Use] = []
ROWS = [{"path": "a", "size": 1}, {"path": "b", "size": 20}, {"path": "c", "size": None}]


class Kind(enum.Enum):
    PAGE = "page"


@dataclasses.dataclass
class Visit:
    id: uuid.UUID
    kind: Kind
    pages: dict[str, int]


def use(function: Use) -> Use:
    USES.append(function)
    return function


# Plain Python: rows in


@use
def a_row_is_a_dict(store, files):
    files.upsert({"path": "d", "size": 4})
    assert files["d"] == {"path": "d", "size": 4}


@use
def rows_are_a_list(store, files):
    files.upsert([{"path": "d", "size": 4}, {"path": "e", "size": 5}])
    assert len(files) == 5


@use
def rows_come_from_a_generator(store, files):
    files.upsert({"path": f"{n:05}", "size": n} for n in range(20_000))
    assert len(files) == 20_003


@use
def a_row_is_a_dataclass(store, files):
    @dataclasses.dataclass
    class File:
        path: str
        size: int | None = None

    files.upsert([File("d", 4), File("e")])
    assert files["e"]["size"] is None


@use
def a_row_is_a_pydantic_model(store, files):
    class File(pydantic.BaseModel):
        path: str
        size: int

    files.upsert(File(path="d", size=4))
    assert File(**files["d"]).size == 4


@use
def a_row_is_set_like_an_item(store, files):
    files["d"] = {"size": 4}
    assert files["d"]["size"] == 4


@use
def a_nullable_column_may_be_left_out(store, files):
    files.upsert({"path": "a"})
    assert files["a"]["size"] is None


@use
def only_some_columns_are_updated(store, files):
    store.add_columns("files", [pa.field("owner", pa.string())])
    files.upsert({"path": "a", "owner": "me"}, columns=["path", "owner"])
    assert files["a"] == {"path": "a", "size": 1, "owner": "me"}


@use
def a_value_that_does_not_fit_is_refused(store, files):
    for wrong in ({"path": "d", "size": "4"}, {"path": "d", "size": 4.5}, {"path": "d", "sise": 4}, {"size": 4}):
        try:
            files.upsert(wrong)
        except SchemaMismatch:
            continue
        raise AssertionError(wrong)
    assert len(files) == 3


@use
def many_rows_go_through_a_writer(store, files):
    with files.writer() as writer:
        for n in range(1000):
            writer.upsert({"path": f"{n:04}", "size": n})
    assert len(files) == 1003


@use
def a_csv_file_is_read_by_python(store, files):
    file = store.path.parent / "files.csv"
    file.write_text("path,size\nd,4\ne,\n")
    with file.open() as lines:
        files.upsert({**row, "size": int(row["size"]) if row["size"] else None} for row in csv.DictReader(lines))
    assert files["e"] == {"path": "e", "size": None}


# Plain Python: rows out


@use
def a_row_is_found_by_its_key(store, files):
    assert files["b"]["size"] == 20
    assert files.get("nope") is None
    assert "b" in files


@use
def rows_are_iterated_in_key_order(store, files):
    assert [row["path"] for row in files] == ["a", "b", "c"]


@use
def rows_are_counted(store, files):
    assert len(files) == files.count() == 3


@use
def many_keys_are_looked_up_at_once(store, files):
    assert files.lookup(["c", "nope", "a"])["_found"].to_pylist() == [True, False, True]


@use
def keys_that_begin_alike_are_found(store, files):
    parts = store.create_table("parts", {"file": "string", "part": "int64"}, ["file", "part"])
    parts.upsert([{"file": file, "part": part} for file in "ab" for part in range(3)])
    assert parts.prefix_lookup({"file": "b"})["part"].to_pylist() == [0, 1, 2]


@use
def a_range_of_keys_is_read(store, files):
    assert files.to_arrow(start="b", stop="d")["path"].to_pylist() == ["b", "c"]
    assert files.to_pandas(reverse=True, limit=1)["path"].tolist() == ["c"]
    assert [row["path"] for row in reversed(files)] == ["c", "b", "a"]


@use
def keys_that_begin_with_a_text_are_found(store, files):
    files.upsert([{"path": "src/a", "size": 1}, {"path": "src/b", "size": 2}, {"path": "srcs", "size": 3}])
    assert files.to_arrow(prefix="src/")["size"].to_pylist() == [1, 2]


@use
def rows_are_filtered(store, files):
    assert files.to_arrow(filter=pc.field("size") > 10)["path"].to_pylist() == ["b"]


@use
def columns_are_chosen_and_rows_limited(store, files):
    assert files.to_arrow(columns=["size"], limit=2).to_pylist() == [{"size": 1}, {"size": 20}]


@use
def a_large_table_is_read_batch_by_batch(store, files):
    assert sum(batch.num_rows for batch in files.scan()) == 3


@use
def a_table_shows_what_it_is(store, files):
    assert repr(files) == "<kvstore.Table files: key path, 3 rows>"
    assert files._repr_html_().startswith("<table>")


# Changing and deleting


@use
def a_row_is_deleted_by_its_key(store, files):
    del files["a"]
    files.delete(["b", "nope"])
    assert [row["path"] for row in files] == ["c"]


@use
def rows_are_deleted_by_what_they_are(store, files):
    files.delete(where=pc.field("size").is_null())
    assert "c" not in files


@use
def a_table_is_emptied(store, files):
    start = files.offsets()[0][1]
    files.truncate()
    assert len(files) == 0
    files.apply(files.undo(start))
    assert list(files) == ROWS


@use
def rows_are_updated_by_what_they_are(store, files):
    files.update_where(pc.field("size") > 10, {"size": pc.field("size") * 2})
    assert files["b"]["size"] == 40


@use
def a_counter_is_incremented(store, files):
    assert files.increment("a", {"size": 1}) == {"path": "a", "size": 2}
    assert files.increment("new", {"size": 5}, default={})["size"] == 5


@use
def a_row_is_computed_from_itself_beside_others(store, files):
    while not files.put_if({"path": "a", "size": files["a"]["size"] * 2}, expected=files["a"]):
        pass
    assert files["a"]["size"] == 2


@use
def a_row_is_stored_unless_there_is_one(store, files):
    assert files.put_if({"path": "new", "size": 1}, expected=None)
    assert not files.put_if({"path": "new", "size": 2}, expected=None)


@use
def upserts_and_deletes_are_one_commit(store, files):
    changes = kvstore.Changes.of([("upsert", {"path": "d", "size": 4}), ("delete", {"path": "a"})], files.schema)
    assert files.apply(changes).last_offset == 4


@use
def a_batch_that_is_sent_twice_is_applied_once(store, files):
    changes = kvstore.Changes.of([("upsert", {"path": "d", "size": 4})], files.schema)
    results = [files.apply_epoch(changes, writer="job", epoch=7) for _ in range(2)]
    assert [result.duplicated for result in results] == [False, True]


# Changes and time


@use
def changes_are_read(store, files):
    files.upsert({"path": "a", "size": 2})
    kinds = [change["_change_type"] for batch in files.changelog() for change in batch.to_pylist()]
    assert kinds == ["insert"] * 3 + ["update_preimage", "update_postimage"]


@use
def changes_since_an_offset_are_read(store, files):
    before = files.offsets()[0][1]
    files.delete("a")
    assert files.changelog(before).read_all()["_change_type"].to_pylist() == ["delete"]


@use
def an_update_has_the_row_before_and_after(store, files):
    start = files.upsert({"path": "a", "size": 2}).first_offset
    (change,) = files.binlog(start).read_all().to_pylist()
    assert (change["before"]["size"], change["after"]["size"]) == (1, 2)


@use
def changes_are_followed_in_asyncio(store, files):
    async def first() -> int:
        async for batch in files.follow("full"):
            return batch.num_rows
        return 0

    assert asyncio.run(first()) == 3


@use
def a_consumer_remembers_where_it_is(store, files):
    consumer = store.consumer("reader")
    consumer.commit("files", {0: 2})
    assert store.consumers == {"reader": {"files": {0: 2}}}


@use
def rows_are_read_as_they_were(store, files):
    then = files.offsets()[0][1]
    files.delete(["a", "b"])
    assert files.to_arrow(as_of=then).num_rows == 3


@use
def a_mistake_is_undone(store, files):
    then = files.offsets()[0][1]
    files.delete(where=pc.field("size") > 0)
    files.apply(files.undo(then))
    assert list(files) == ROWS


# Tables


@use
def tables_are_found_in_the_store(store, files):
    assert list(store) == ["files"]
    assert "files" in store
    assert len(store["files"]) == 3
    try:
        store["nope"]
    except KeyError:
        return
    raise AssertionError


@use
def a_store_is_opened_twice_in_a_process(store, files):
    with kvstore.open(store.path, durability="none") as other:
        other["files"].increment("a", {"size": 1})
    assert files["a"]["size"] == 2


@use
def decimals_are_read_from_csv(store, files):
    file = store.path.parent / "prices.csv"
    file.write_text("k,price\na,1.50\n")
    prices = store.create_table("prices", {"k": "string", "price": "decimal128(10, 2)"}, "k")
    types = pacsv.ConvertOptions(column_types={"price": pa.decimal128(10, 2)})
    prices.upsert(pacsv.read_csv(file, convert_options=types))
    assert prices["a"]["price"] == Decimal("1.50")


@use
def rows_are_numbered_by_a_counter(store, files):
    counters = store.create_table("counters", {"name": "string", "n": "int64"}, "name")
    events = store.create_table("events", {"id": "int64", "text": "string"}, "id")
    for text in ("x", "y"):
        events.upsert({"id": counters.increment("events", {"n": 1}, default={})["n"], "text": text})
    assert [row["id"] for row in events] == [1, 2]


@use
def a_second_table_follows_exactly_once(store, files):
    counts = store.create_table(
        "counts", {"kind": "string", "n": "int64"}, "kind", merge_engine=kvstore.Aggregate({"n": "sum"})
    )
    ranges = store.create_table("ranges", {"epoch": "int64", "start": "int64", "end": "int64"}, "epoch")

    def plan():  # kept before it is applied: after a kill, the same range is applied again
        known = counts.writers.get("follow")
        epoch = 0 if known is None or known.last_epoch is None else known.last_epoch + 1
        if epoch not in ranges:
            ranges[epoch] = {"start": (ranges.get(epoch - 1) or {"end": 0})["end"], "end": files.offsets()[0][1]}
        return ranges[epoch]

    def apply(given):
        kinds = files.changelog(given["start"], given["end"]).read_all()["_change_type"].to_pylist()
        changes = kvstore.Changes.of([("upsert", {"kind": kind, "n": 1}) for kind in kinds], counts.schema)
        counts.apply_epoch(changes, writer="follow", epoch=given["epoch"])

    plan()  # killed here, and then more is written
    files.delete("a")
    for _ in range(3):
        apply(plan())
    assert {row["kind"]: row["n"] for row in counts} == {"insert": 3, "delete": 1}


@use
def a_table_is_declared_by_a_dict(store, files):
    table = store.create_table("t", {"k": "int64", "at": "timestamp[us, tz=UTC]"}, "k")
    table[1] = {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    assert table[1]["at"].year == 2026


@use
def a_table_is_declared_by_a_dataclass(store, files):
    assert store.create_table("t", Declared, "k").schema.field("k").type == pa.string()


@dataclasses.dataclass
class Declared:
    k: str
    size: int | None = None


@use
def a_column_is_added(store, files):
    store.add_columns("files", [pa.field("owner", pa.string())])
    assert files["a"] == {"path": "a", "size": 1, "owner": None}
    files.upsert({"path": "d", "size": 4})  # a program that does not know the column goes on


@use
def columns_are_renamed_and_dropped(store, files):
    store.rename_columns("files", {"size": "bytes"})
    assert files["a"] == {"path": "a", "bytes": 1}
    store.drop_columns("files", ["bytes"])
    assert files["a"] == {"path": "a"}


@use
def a_column_becomes_wider(store, files):
    counts = store.create_table("counts", {"k": "string", "n": "int32"}, "k")
    counts["a"] = {"n": 2**31 - 1}
    store.add_columns("counts", {"wide": "int64"})
    counts.update_where(pc.field("n").is_valid(), {"wide": pc.field("n").cast("int64")})
    store.drop_columns("counts", ["n"])
    store.rename_columns("counts", {"wide": "n"})
    assert counts.increment("a", {"n": 1})["n"] == 2**31


@use
def a_long_key_is_a_hash(store, files):
    pages = store.create_table("pages", {"id": "fixed_size_binary[32]", "url": "string"}, "id")
    url = "https://example.com/" + "x" * 2_000
    pages.upsert({"id": sha256(url.encode()).digest(), "url": url})
    assert pages[sha256(url.encode()).digest()]["url"] == url


@use
def a_table_is_dropped(store, files):
    store.drop_table("files")
    assert list(store) == []


@use
def a_log_table_is_appended_to(store, files):
    log = store.create_table("log", {"at": "int64", "text": "string"})
    log.upsert([{"at": 1, "text": "x"}, {"at": 1, "text": "x"}])
    assert log.changelog(columns=["text"]).read_all()["text"].to_pylist() == ["x", "x"]


@use
def sums_are_kept_up_to_date(store, files):
    totals = store.create_table(
        "totals", {"k": "string", "n": "int64"}, "k", merge_engine=kvstore.Aggregate({"n": "sum"})
    )
    totals.upsert([{"k": "x", "n": 1}, {"k": "x", "n": 2}])
    assert totals["x"]["n"] == 3


@use
def a_store_is_checked(store, files):
    assert store.check().ok


# pandas


@use
def a_frame_is_stored(store, files):
    files.upsert(pd.DataFrame({"path": ["d", "e"], "size": [4, 5]}))
    assert len(files) == 5


@use
def a_frame_of_any_index_is_stored(store, files):
    frame = pd.DataFrame({"path": ["d", "e", "f"], "size": [4, 5, 6]})
    files.upsert(frame.sample(2, random_state=1))
    files.upsert(frame.set_index("path"))
    assert len(files) == 6


@use
def a_table_is_a_frame(store, files):
    assert files.to_pandas(filter=pc.field("size") > 1)["size"].tolist() == [20]


@use
def a_frame_is_changed_and_stored_again(store, files):
    frame = files.to_pandas()
    frame["size"] = frame["size"].fillna(0) + 1
    files.upsert(frame)
    assert [row["size"] for row in files] == [2, 21, 1]


@use
def keys_of_a_frame_are_deleted(store, files):
    frame = files.to_pandas()
    files.delete(frame[frame["size"] > 10][["path"]])
    assert "b" not in files


@use
def changes_are_a_frame(store, files):
    assert files.changelog().to_pandas()["_change_type"].unique().tolist() == ["insert"]


@use
def rows_are_looked_up_for_a_frame(store, files):
    found = files.lookup(pd.Series(["b", "a"])).to_pandas()
    assert found["size"].tolist() == [20, 1]


# Polars


@use
def a_polars_frame_is_stored(store, files):
    files.upsert(pl.DataFrame({"path": ["d"], "size": [4]}))
    files.upsert(pl.LazyFrame({"path": ["e"], "size": [5]}).with_columns(pl.col("size") * 2))
    assert files["e"]["size"] == 10


@use
def a_table_is_a_polars_frame(store, files):
    assert pl.DataFrame(files).equals(files.to_polars())
    assert files.to_polars()["size"].sum() == 21


@use
def polars_scans_lazily(store, files):
    lazy = pl.scan_pyarrow_dataset(files.dataset())
    assert lazy.filter(pl.col("path") == "b").select("size").collect().item() == 20


@use
def changes_are_a_polars_frame(store, files):
    assert files.changelog().to_polars().height == 3


# DuckDB and SQL


@use
def sql_runs_over_the_tables(store, files):
    assert store.sql("SELECT sum(size) AS n FROM files").read_all().to_pylist() == [{"n": 21}]


@use
def sql_runs_over_the_changes(store, files):
    found = store.sql("SELECT _change_type, count(*) AS n FROM changes('files', 1) GROUP BY ALL").read_all()
    assert found.to_pylist() == [{"_change_type": "insert", "n": 2}]


@use
def sql_joins_tables(store, files):
    store.create_table("owners", {"path": "string", "owner": "string"}, "path").upsert({"path": "a", "owner": "me"})
    found = store.sql("SELECT owner, size FROM owners JOIN files USING (path)").read_all()
    assert found.to_pylist() == [{"owner": "me", "size": 1}]


@use
def sql_takes_parameters(store, files):
    found = store.sql("SELECT path FROM files WHERE size > ? AND path <> ?", params=[1, "x'; DROP TABLE files"])
    assert found.read_all().to_pylist() == [{"path": "b"}]
    assert store.sql("SELECT size FROM files WHERE path = $key", params={"key": "a"}).read_all().to_pylist() == [
        {"size": 1}
    ]


@use
def sql_joins_a_frame(store, files):
    owners = pd.DataFrame({"path": ["a"], "owner": ["me"]})
    found = store.sql("SELECT owner, size FROM owners JOIN files USING (path)", tables={"owners": owners})
    assert found.read_all().to_pylist() == [{"owner": "me", "size": 1}]


@use
def duckdb_scans_a_table(store, files):
    connection = duckdb.connect()
    connection.register("files", files.dataset())
    assert connection.execute("SELECT max(size) FROM files WHERE path < 'c'").fetchall() == [(20,)]


@use
def a_result_of_duckdb_is_stored(store, files):
    files.upsert(duckdb.connect().sql("SELECT 'd' AS path, 4 AS size").to_arrow_table())
    assert files["d"]["size"] == 4


# Types of Python


@use
def an_object_that_was_written_is_made_of_its_row(store, files):
    visits = store.create_table("visits", Visit, primary_key="id")
    visit = Visit(uuid.uuid4(), Kind.PAGE, {"/": 2})
    visits.upsert(visit)
    assert visits.get(visit.id, into=Visit) == visit
    assert visits[visit.id] == {"id": str(visit.id), "kind": "page", "pages": {"/": 2}}


# Files


@use
def a_parquet_file_is_stored(store, files):
    path = store.path.parent / "files.parquet"
    pd.DataFrame({"path": ["d", "e"], "size": [4, 5]}).to_parquet(path)
    files.upsert(pa.dataset.dataset(path))
    assert len(files) == 5


@use
def a_table_is_written_to_parquet(store, files):
    path = store.path.parent / "files.parquet"
    parquet.write_table(files.to_arrow(), path)
    assert parquet.read_table(path).num_rows == 3


@use
def a_table_is_written_to_csv(store, files):
    path = store.path.parent / "files.csv"
    files.to_pandas().to_csv(path, index=False)
    assert path.read_text().splitlines()[:2] == ["path,size", "a,1"]


@use
def a_store_is_backed_up_while_it_is_written(store, files):
    copy = store.path.parent / "backup"
    store.backup(copy)
    files.delete("a")
    with kvstore.open(copy, read_only=True) as backup:
        assert list(backup["files"]) == ROWS


@use
def a_store_is_copied_to_a_replica_and_restored(store, files):
    replica = store.path.parent / "replica"
    store.add_replica(str(replica), name="backup")
    store.replica("backup").ship()
    kvstore.restore(str(replica), store.path.parent / "restored")
    with kvstore.open(store.path.parent / "restored") as restored:
        assert list(restored["files"]) == ROWS


def main() -> None:
    for number, each in enumerate(USES, 1):
        with (
            tempfile.TemporaryDirectory() as directory,
            kvstore.open(Path(directory) / "store", durability="none") as store,
        ):
            files = store.create_table("files", {"path": "string", "size": "int64"}, primary_key="path")
            files.upsert(ROWS)
            each(store, files)
        print(f"{number:2} {each.__name__.replace('_', ' ')}")


if __name__ == "__main__":
    main()
