"""``CHANGES`` of a table: which commits a range selects, net changes, and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

import kvstore
from kvstore import StoreOptions
from kvstore.errors import InvalidRequest, OffsetOutOfRange
from kvstore.spark.read.net import net_changes
from kvstore.spark.read.versions import Bound, ranges_of
from kvstore.store.store import Store
from tests.conftest import OpenStore
from tests.spark.catalogs import Run, catalog_of
from tests.support.clocks import SetClock

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])
COLUMNS = "_bucket, _log_offset, _commit_version, _change_type, k, s"
HISTORIES = 200
BOUNDS = ((True, True), (True, False), (False, True), (False, False))
"""Whether a range has its first and its last version."""
Rows = dict[int, str | None]
Change = dict[str, Any]


@pytest.fixture
def kv(spark: SparkSession, store: kvstore.Store) -> Iterator[tuple[str, Run]]:
    """The catalog's name, and what runs SQL in it."""
    with catalog_of(spark, store.path) as found:
        yield found


def history(table: kvstore.Table, random: Random, commits: int) -> None:
    """Commits of several operations each, some of the same key."""
    for _ in range(commits):
        keys = [random.randrange(6) for _ in range(random.randrange(1, 7))]
        table.apply(
            kvstore.Changes.of(
                [
                    ("delete", {"k": key})
                    if random.random() < 0.4
                    else ("upsert", {"k": key, "s": random.choice(["a", "b", None])})
                    for key in keys
                ],
                SCHEMA,
            )
        )
    table.flush()


def changes_of(table: kvstore.Table) -> list[Change]:
    return [row for batch in table.changelog() for row in batch.to_pylist()]


def folded(rows: Rows, changes: list[Change]) -> Rows:
    """What changes make of rows."""
    found = dict(rows)
    for change in changes:
        if change["_change_type"] == "delete":
            del found[change["k"]]
        elif change["_change_type"] != "update_preimage":
            found[change["k"]] = change["s"]
    return found


def test_a_range_selects_whole_commits(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    history(table, Random(1), 4)
    versions = sorted({change["_commit_version"] for change in changes_of(table)})
    end = table.offsets()[0][1]
    for start in range(end + 2):
        for last in (*range(start, end + 2), None):
            for starts_with, ends_with in BOUNDS:
                place = None if last is None else str(last)
                ranges = ranges_of(table, Bound(str(start), starts_with), Bound(place, ends_with))
                first, after = ranges[0]
                expected = [
                    version
                    for version in versions
                    if (start <= version if starts_with else start < version)
                    and (last is None or (version <= last if ends_with else version < last))
                ]
                assert [version for version in versions if first <= version < after] == expected
                assert first in (*versions, end)
                assert after in (*versions, end)


def test_a_range_of_times_selects_commits_by_their_time(tmp_path: Path) -> None:
    clock = SetClock()
    times = [2_000_000, 2_000_000, 2_000_001, 2_000_500]
    with Store(tmp_path / "store", StoreOptions(), clock=clock) as store:
        table = store.create_table("t", SCHEMA, "k")
        for number, time in enumerate(times):
            clock.now = time
            table.upsert({"k": number, "s": ""})
        table.flush()
        bounds = [time * 1000 + part for time in (1_999_999, *times[1:], 2_000_600) for part in (-1, 0, 1)]
        for start in bounds:
            for last in (*(bound for bound in bounds if bound >= start), None):
                for starts_with, ends_with in BOUNDS:
                    first, after = ranges_of(table, Bound(start, starts_with), Bound(last, ends_with))[0]
                    assert list(range(first, after)) == [
                        offset
                        for offset, micros in enumerate(time * 1000 for time in times)
                        if (start <= micros if starts_with else start < micros)
                        and (last is None or (micros <= last if ends_with else micros < last))
                    ]


def test_a_version_of_several_buckets_has_an_offset_for_each(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.upsert([{"k": k, "s": ""} for k in range(9)])
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    assert ranges_of(table, Bound("0"), Bound(None)) == {bucket: (0, end) for bucket, end in ends.items()}
    assert ranges_of(table, Bound("earliest"), Bound(json.dumps({0: 0, 1: 0}), inclusive=False)) == {
        0: (0, 0),
        1: (0, 0),
    }
    for wrong in ("3", "x", '{"0": 1}', '{"0": 1, "1": -1}', '{"0": 1, "1": "a"}'):
        with pytest.raises(InvalidRequest, match="first offset of a commit, for each bucket"):
            ranges_of(table, Bound(wrong), Bound(None))


@pytest.mark.spark_more
def test_versions_that_have_expired_are_refused(open_store: OpenStore) -> None:
    store = open_store(segment_bytes_max=1000, log_bytes_max=2000)
    table = store.create_table("t", SCHEMA, "k")
    for number in range(60):
        table.upsert({"k": number % 3, "s": "x" * 50})
    table.snapshot()
    store.checkpoint()
    begin = table.offsets()[0][0]
    if begin == 0:
        pytest.fail("nothing has expired")
    with pytest.raises(OffsetOutOfRange, match="begin at the version of a later one, or at 'earliest'"):
        ranges_of(table, Bound("0"), Bound(None))
    # What has expired is removed in the background, so the log may begin later than a moment ago.
    assert begin <= ranges_of(table, Bound("earliest"), Bound(None))[0][0] <= table.offsets()[0][0]


def test_net_changes_lead_from_the_rows_before_a_range_to_those_after_it(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, kept = Random(3), 0
    for number in range(15):
        monkeypatch.setitem(net_changes.__globals__, "FOLD_ROWS", random.choice([1, 5, 1000]))
        table = store.create_table(f"t{number}", SCHEMA, "k")
        history(table, random, 8)
        changes = pa.concat_batches(table.changelog())
        start = random.choice([0, *changes.column("_commit_version").to_pylist()])
        given = changes.filter(pc.field("_commit_version") >= start)
        cuts = sorted(random.sample(range(given.num_rows + 1), min(3, given.num_rows)))
        pieces = [given.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, given.num_rows], strict=True)]
        net = [row for each in net_changes(pieces, table.parts.definition) for row in each.to_pylist()]
        rows = folded({}, changes.filter(pc.field("_commit_version") < start).to_pylist())
        after = folded(rows, given.to_pylist())
        same = rows.keys() & after.keys()
        assert sorted((c["k"], c["_change_type"], c["s"]) for c in net) == sorted(
            [
                *((k, "delete", rows[k]) for k in rows.keys() - after.keys()),
                *((k, "insert", after[k]) for k in after.keys() - rows.keys()),
                *((k, "update_preimage", rows[k]) for k in same if rows[k] != after[k]),
                *((k, "update_postimage", after[k]) for k in same if rows[k] != after[k]),
            ]
        )
        assert [c["_log_offset"] for c in net] == sorted(c["_log_offset"] for c in net)
        kept += sum(rows[k] == after[k] and k in given.column("k").to_pylist() for k in same)
    assert kept > 3


def check_history(kv: tuple[str, Run], store: kvstore.Store, seed: int) -> None:
    """CHANGES of any range of a random history, folded, lead from the rows at its start to those at its end."""
    run, random = kv[1], Random(seed)
    buckets, image = random.choice([1, 2, 3]), random.choice(["full", "full", "wal"])
    table = store.create_table(f"t{seed}", SCHEMA, "k", buckets=buckets, changelog_image=image)
    history(table, random, random.randrange(3, 12))
    versions: dict[int, list[int]] = {bucket: [0, end] for bucket, (_, end) in table.offsets().items()}
    changes = changes_of(table)
    for change in changes:
        versions[change["_bucket"]].append(change["_commit_version"])
    start = {bucket: random.choice(found) for bucket, found in versions.items()}
    end = {
        bucket: random.choice([each for each in found if each >= start[bucket]]) for bucket, found in versions.items()
    }
    before = folded({}, [c for c in changes if c["_log_offset"] < start[c["_bucket"]]])
    after = folded({}, [c for c in changes if c["_log_offset"] < end[c["_bucket"]]])
    since = f"CHANGES FROM VERSION '{json.dumps(start)}' TO VERSION '{json.dumps(end)}' EXCLUSIVE"
    names = COLUMNS.split(", ")
    found = [dict(zip(names, row, strict=True)) for row in run(f"SELECT {COLUMNS} FROM kv.t{seed} {since}")]
    found.sort(key=lambda change: (change["_bucket"], change["_log_offset"]))
    assert found == [
        {name: change[name] for name in names}
        for change in changes
        if start[change["_bucket"]] <= change["_log_offset"] < end[change["_bucket"]]
    ]
    assert folded(before, found) == after
    if image == "full":
        more = "WITH (deduplicationMode = 'netChanges', computeUpdates = 'true')"
        net = [dict(zip(names, row, strict=True)) for row in run(f"SELECT {COLUMNS} FROM kv.t{seed} {since} {more}")]
        assert len(net) == len({(c["k"], c["_change_type"]) for c in net})
        assert folded(before, sorted(net, key=lambda c: c["_change_type"] != "delete")) == after
        kinds: dict[int, set[str]] = {}
        for change in net:
            kinds.setdefault(change["k"], set()).add(change["_change_type"])
        for key, kind in kinds.items():
            update = {"update_preimage", "update_postimage"}
            assert kind == (({"insert"} if key not in before else {"delete"}) if len(kind) == 1 else update)
        assert {*kinds} == {k for k in before.keys() | after.keys() if before.get(k, ...) != after.get(k, ...)}


def test_changes_of_a_history_lead_from_its_rows_at_the_start_to_those_at_the_end(
    kv: tuple[str, Run], store: kvstore.Store
) -> None:
    for seed in range(4):
        check_history(kv, store, seed)


@pytest.mark.long
def test_changes_of_many_histories(kv: tuple[str, Run], store: kvstore.Store) -> None:
    for seed in range(4, HISTORIES):
        check_history(kv, store, seed)


def test_several_changes_of_a_key_in_one_append_have_one_net_change(
    spark: SparkSession, kv: tuple[str, Run], store: kvstore.Store
) -> None:
    name, run = kv
    table = store.create_table("t", SCHEMA, "k")
    operations = [("upsert", {"k": 1, "s": "a"}), ("upsert", {"k": 1, "s": "b"}), ("delete", {"k": 1})]
    table.apply(kvstore.Changes.of([*operations, ("upsert", {"k": 2, "s": "x"})], SCHEMA))
    table.upsert({"k": 2, "s": "y"})
    table.flush()
    kinds = [row[0] for row in run("SELECT _change_type FROM kv.t CHANGES FROM VERSION 0 ORDER BY _log_offset")]
    assert kinds == ["insert", "update_preimage", "update_postimage", "delete", "insert", *kinds[1:3]]
    net = "SELECT _change_type, k, s FROM kv.t CHANGES FROM {} WITH (deduplicationMode = 'netChanges'{}) ORDER BY 1, 2"
    assert run(net.format("VERSION 0", "")) == [("insert", 2, "y")]
    assert run(net.format("VERSION 0 EXCLUSIVE", ", computeUpdates = 'true'")) == [
        ("update_postimage", 2, "y"),
        ("update_preimage", 2, "x"),
    ]
    assert run(net.format("TIMESTAMP '2020-01-01 00:00:00' TO TIMESTAMP '2020-01-02 00:00:00'", "")) == []
    frame = spark.read.option("startingVersion", "0").changes(f"{name}.t")
    assert frame.count() == 7
    assert [row.s for row in frame.where("_change_type = 'update_postimage' AND s = 'y'").collect()] == ["y"]


def test_appended_rows_of_a_log_table_are_inserts(kv: tuple[str, Run], store: kvstore.Store) -> None:
    store.create_table("lines", SCHEMA).upsert([{"k": 1, "s": "a"}, {"k": 1, "s": "b"}])
    store.table("lines").flush()
    found = kv[1]("SELECT _change_type, s FROM kv.lines CHANGES FROM VERSION 0 WHERE _change_type = 'insert'")
    assert sorted(found) == [("insert", "a"), ("insert", "b")]


def streamed(spark: SparkSession, table: str, checkpoint: Path, **options: str) -> list[list[tuple[Any, ...]]]:
    batches: list[list[tuple[Any, ...]]] = []
    stream = spark.readStream.options(**options).changes(table).select("_change_type", "k", "s").writeStream
    stream = stream.foreachBatch(lambda rows, _: batches.append([tuple(row) for row in rows.collect()]))
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return batches


def test_a_stream_of_changes_has_each_change_once(
    spark: SparkSession, kv: tuple[str, Run], store: kvstore.Store, tmp_path: Path
) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for text in ("skipped", "a", "b"):
        table.upsert({"k": 1, "s": text})
    table.flush()
    batches = streamed(spark, f"{kv[0]}.t", tmp_path / "c", startingVersion="1", maxOffsetsPerTrigger="1")
    assert batches == [
        [("update_preimage", 1, "skipped"), ("update_postimage", 1, "a")],
        [("update_preimage", 1, "a"), ("update_postimage", 1, "b")],
    ]
    table.delete([1])
    table.flush()
    assert streamed(spark, f"{kv[0]}.t", tmp_path / "c", startingVersion="1") == [[("delete", 1, "b")]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deduplicationMode": "netChanges"}, "leave `deduplicationMode` and `computeUpdates` out"),
        ({"computeUpdates": "true"}, "leave `deduplicationMode` and `computeUpdates` out"),
        ({"startingVersion": "0", "endingVersion": "3"}, "has no end"),
        ({"startingVersion": "2"}, "can't begin after the last commit"),
        ({"startingTimestamp": "2999-01-01 00:00:00"}, "can't begin after the last commit"),
    ],
)
def test_a_stream_is_refused_where_spark_would_drop_rows(
    spark: SparkSession,
    kv: tuple[str, Run],
    store: kvstore.Store,
    tmp_path: Path,
    options: dict[str, str],
    message: str,
) -> None:
    store.create_table("t", SCHEMA, "k").upsert({"k": 1, "s": "a"})
    with pytest.raises(StreamingQueryException, match=f"UnsupportedOperation: A stream of CHANGES .*{message}"):
        streamed(spark, f"{kv[0]}.t", tmp_path / "checkpoint", **options)


def test_the_range_of_changes_is_no_option_of_a_changelog(
    spark: SparkSession, kv: tuple[str, Run], store: kvstore.Store
) -> None:
    store.create_table("t", SCHEMA, "k").upsert({"k": 1, "s": "a"})
    for option in ("startingOffsets = 'latest'", "endingOffsets = '1'"):
        with pytest.raises(AnalysisException, match="InvalidRequest: CHANGES has its range from FROM and TO"):
            kv[1](f"SELECT k FROM kv.t CHANGES FROM VERSION 0 WITH ({option})")
    with pytest.raises(AnalysisException, match="A version of this table is the first offset"):
        kv[1]("SELECT k FROM kv.t CHANGES FROM VERSION 'true'")
    frame = spark.read.option("startingVersion", "9").changes(f"{kv[0]}.t")  # a batch may be empty
    assert frame.count() == 0


def test_net_changes_need_the_rows_before(kv: tuple[str, Run], store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, "k", changelog_image="wal")
    with pytest.raises(AnalysisException, match="Net changes need the rows before each change"):
        kv[1]("SELECT k FROM kv.t CHANGES FROM VERSION 0 WITH (deduplicationMode = 'netChanges')")
