"""Scans, lookups and changelogs: order, columns, starts and ends."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import CorruptBatch, CorruptData, InvalidRequest
from kvstore.options import StoreOptions
from kvstore.read import changelog
from kvstore.read.scan import KeyRange
from kvstore.store.store import Store
from tests.support.clocks import SetClock
from tests.support.tables import changes_of, rows_of

pytestmark = pytest.mark.usefixtures("both_ways")

SCHEMA = pa.schema([pa.field("v", pa.int64()), pa.field("name", pa.string(), False), pa.field("n", pa.int32(), False)])


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, primary_key=["name", "n"])
    table.upsert([{"name": name, "n": n, "v": n} for n in (2, -1) for name in ("b", "a", "")])
    return table


def test_a_scan_is_in_key_order_whatever_the_order_of_columns(table: kvstore.Table) -> None:
    assert [(row["name"], row["n"]) for row in rows_of(table)] == [
        ("", -1), ("", 2), ("a", -1), ("a", 2), ("b", -1), ("b", 2)
    ]  # fmt: skip


def test_a_scan_of_some_columns_has_them_in_the_requested_order(table: kvstore.Table) -> None:
    for columns in (["n", "v"], ["v"], ["name"], ["v", "name", "n"]):
        assert table.scan(columns).read_all().equals(table.scan().read_all().select(columns))


def test_columns_may_be_one_name_or_any_list_of_names(table: kvstore.Table) -> None:
    rows = table.scan().read_all()
    assert table.scan("name").read_all().equals(rows.select(["name"]))
    assert table.scan(name for name in ("v", "n")).read_all().equals(rows.select(["v", "n"]))
    for columns in ("v", iter(["v"])):
        assert [batch.schema.names for batch in table.changelog(columns=columns)] == [["v"]]


def test_a_filter_on_any_column_applies_before_the_limit(table: kvstore.Table) -> None:
    table.upsert({"name": "b", "n": 3, "v": None})
    rows = table.scan().read_all()
    for condition in (
        (pc.field("v") > 0) & (pc.field("name") != "a"),
        pc.field("v").is_null(),
        pc.field("name").isin(["a", ""]),
        pc.field(0) == -1,
        pc.scalar(True),
        pc.scalar(False),
    ):
        expected = rows.filter(condition)
        assert table.scan(filter=condition).read_all().equals(expected)
        for columns in (["n"], ["v", "name"]):
            assert table.scan(columns, condition).read_all().equals(expected.select(columns))
            for limit in range(4):
                assert table.scan(columns, condition, limit).read_all().equals(expected.select(columns)[:limit])
    assert table.scan("n", pc.field("name") == "b", None, 6).read_all()["n"].to_pylist() == [-1, 2]


def test_a_filter_keeps_the_order_of_many_rows(store: kvstore.Store) -> None:
    table = store.create_table("u", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
    table.upsert(pa.table({"k": range(100_000)}))
    table.delete(pa.table({"k": range(100_000)}))
    expected = list(range(1, 100_000))
    assert table.scan(filter=pc.field("k") > 0, as_of=100_000).read_all()["k"].to_pylist() == expected


@pytest.mark.parametrize("limit", [0, 1, 4, 6, 100])
def test_a_limit_takes_the_first_rows_in_key_order(table: kvstore.Table, limit: int) -> None:
    assert table.scan(limit=limit).read_all().to_pylist() == rows_of(table)[:limit]


def test_keys_are_accepted_in_every_form(table: kvstore.Table) -> None:
    expected = {"name": "a", "n": 2, "v": 2}
    assert table.get(("a", 2)) == table.get({"n": 2, "name": "a"}) == table[("a", 2)] == expected
    assert table.get(("a", 3)) is None
    with pytest.raises(KeyError):
        table[("a", 3)]
    found = table.lookup(pa.table({"name": ["a", "zz"], "n": pa.array([2, 0], pa.int32())}))
    assert found.to_pylist() == [expected | {"_found": True}, {"name": "zz", "n": 0, "v": None, "_found": False}]
    assert table.lookup([]).num_rows == 0


def test_a_table_contains_its_keys(table: kvstore.Table) -> None:
    assert ("a", 2) in table
    assert ("a", 3) not in table


def test_lookup_answers_each_key_in_order_even_if_repeated(table: kvstore.Table) -> None:
    keys = [("b", 2), ("x", 0), ("b", 2), ("", -1)]
    assert [row["_found"] for row in table.lookup(keys).to_pylist()] == [True, False, True, True]


@pytest.mark.parametrize("buckets", [1, 2])
@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us")])
def test_get_is_a_lookup_of_one_key(store: kvstore.Store, buckets: int, kind: pa.DataType) -> None:
    schema = pa.schema([("v", pa.int64()), ("s", pa.string()), pa.field("k", pa.int64(), False), ("x", kind)])
    table = store.create_table("u", schema, primary_key="k", buckets=buckets)
    table.upsert({"k": 1, "v": 1, "s": "gone", "x": None})
    table.upsert([{"k": 1, "v": None, "s": "é\0", "x": None}, {"k": -5, "v": 2, "s": None, "x": None}])
    table.delete(7)

    def check(table: kvstore.Table) -> None:
        for key in (1, -5, 7):
            (row,) = table.lookup([key]).to_pylist()
            expected = row if row.pop("_found") else None
            for form in (key, (key,), {"k": key}, np.int64(key)):
                assert table.get(form) == expected
                assert expected is None or list(table.get(form) or ()) == table.schema.names

    check(table)  # through the open transaction
    table.flush()
    check(table)
    store.add_columns("u", [pa.field("new", pa.string())])
    check(table)
    table.upsert({"k": 1, "v": 3, "s": "", "x": None, "new": "n"})
    check(table)
    table.flush()
    with kvstore.open(table.parts.store_path, read_only=True) as reading:
        check(reading.table("u"))


def test_get_reports_a_damaged_row(table: kvstore.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.flush()
    value = BucketHandle.value
    monkeypatch.setattr(BucketHandle, "value", lambda self, key: bytes(8) + (value(self, key) or b"")[8:])
    with pytest.raises(CorruptData, match="fail their checksum"):
        table.get(("a", 2))


def test_get_of_a_row_with_a_column_that_another_process_just_added(
    table: kvstore.Table, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = BucketHandle.value

    def slowly(self: BucketHandle, key: bytes) -> bytes | None:
        monkeypatch.undo()
        store.add_columns("t", [pa.field("new", pa.date32())])
        table.upsert({"name": "a", "n": 2, "v": 5, "new": dt.date(2026, 1, 2)})
        return value(self, key)

    monkeypatch.setattr(BucketHandle, "value", slowly)
    assert table.get(("a", 2)) == {"v": 5, "name": "a", "n": 2, "new": dt.date(2026, 1, 2)}


def test_delete_takes_keys_in_every_form(table: kvstore.Table) -> None:
    table.delete(("a", 2))
    table.delete([("a", -1), {"name": "b", "n": 2}])
    result = table.delete(pa.table({"n": pa.array([-1], pa.int32()), "name": ["b"]}))
    assert [(row["name"], row["n"]) for row in rows_of(table)] == [("", -1), ("", 2)]
    assert (result.first_offset, result.last_offset) == (9, 9)


def test_arrow_data_of_every_library_is_accepted(store: kvstore.Store) -> None:
    table = store.create_table("u", SCHEMA, primary_key=["name", "n"])
    data = pa.table({"name": ["x", "y"], "n": pa.array([1, 2], pa.int8()), "v": pa.array([1, 2]).dictionary_encode()})
    table.upsert(data)
    table.upsert(data.to_batches()[0])
    table.upsert(data.to_reader())
    assert [row["v"] for row in rows_of(table)] == [1, 2]
    assert table.offsets() == {0: (0, 10)}


def test_long_data_is_applied_in_batches(open_store: object, store_path: Path) -> None:
    with Store(store_path, StoreOptions(batch_rows_max=100)) as store:
        table = store.create_table("u", SCHEMA, primary_key=["name", "n"])
        data = pa.table({"name": ["x"] * 250, "n": pa.array(range(250), pa.int32()), "v": pa.array(range(250))})
        result = table.upsert(data)
        assert (result.first_offset, result.last_offset) == (0, 249)
        assert sorted({version for *_, version in changes_of(table)}) == [0, 100, 200]
        assert table.upsert(data.slice(0, 0)).first_offset == 250


class TestChangelog:
    def test_columns(self, table: kvstore.Table) -> None:
        (batch,) = table.changelog()
        assert batch.schema.names == [
            "_bucket", "_log_offset", "_change_type", "_commit_timestamp", "_commit_version", "v", "name", "n"
        ]  # fmt: skip
        assert batch.schema.types[:5] == [
            pa.int32(), pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.int64()
        ]  # fmt: skip
        (some,) = table.changelog(columns=["n", "_log_offset"])
        assert some.equals(batch.select(["n", "_log_offset"]))

    def test_full_is_the_rows_as_inserts_of_the_last_commit(self, table: kvstore.Table) -> None:
        table.delete(("b", 2))
        changes = changes_of(table, "full")
        assert [row for _, _, row, _ in changes] == rows_of(table)
        assert {(offset, kind, version) for offset, kind, _, version in changes} == {(6, "insert", 6)}

    def test_starts_and_ends(self, table: kvstore.Table) -> None:
        everything = changes_of(table)
        assert changes_of(table, "earliest", "latest") == everything
        assert changes_of(table, "latest") == []
        assert changes_of(table, "full", 6) == changes_of(table, "full", {0: 6}) == changes_of(table, "full")
        for start in range(7):
            for end in range(start, 7):
                assert changes_of(table, start, end) == everything[start:end]
                assert changes_of(table, {0: start}, {0: end}) == everything[start:end]

    def test_times(self, store_path: Path) -> None:
        clock = SetClock(1_000)
        with Store(store_path, StoreOptions(), clock=clock) as store:
            table = store.create_table("t", SCHEMA, primary_key=["name", "n"])
            for step, now in enumerate((1_000, 2_000, 2_000, 1_500, 3_000)):
                clock.now = now
                table.upsert({"name": "a", "n": step, "v": now})
            times = [change["_commit_timestamp"] for batch in table.changelog() for change in batch.to_pylist()]
            assert [int(time.timestamp() * 1000) for time in times] == [1_000, 2_000, 2_000, 2_000, 3_000]

            def at(ms: float) -> dt.datetime:
                return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)

            assert [offset for offset, *_ in changes_of(table, at(2_000))] == [1, 2, 3, 4]
            assert [offset for offset, *_ in changes_of(table, at(1_000.5), at(3_000))] == [1, 2, 3]
            assert changes_of(table, at(3_001)) == []
            with pytest.raises(InvalidRequest, match="time zone"):
                table.changelog(dt.datetime(2020, 1, 1))

    def test_a_damaged_change_is_reported(self, store_path: Path) -> None:
        with kvstore.open(store_path) as store:
            table = store.create_table("t", SCHEMA, primary_key=["name", "n"])
            for n in range(4):
                table.upsert({"name": "a", "n": n, "v": 0})
        log = store_path / "tables/1/0/log/00000000000000000000.log"
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
        with kvstore.open(store_path) as store:
            with pytest.raises(CorruptBatch, match="position="):
                list(store.table("t").changelog())
            assert len(rows_of(store.table("t"))) == 4
            (finding,) = store.check().findings
            assert "CorruptBatch" not in finding
            assert "00000000000000000000.log" in finding


class TestSplits:
    def test_ranges_of_keys_cover_every_row_once(self, store: kvstore.Store) -> None:
        table = store.create_table("u", SCHEMA, primary_key=["name", "n"])
        data = {"name": [f"{n % 97:02}" for n in range(5000)], "n": pa.array(range(5000), pa.int32()), "v": range(5000)}
        table.upsert(pa.table({"name": data["name"], "n": data["n"], "v": pa.array(data["v"])}))
        ranges = table.parts.of_bucket(0).split_keys([KeyRange()], 4)
        assert len(ranges) == 4
        end = table.offsets()[0][1]
        parts = [pa.Table.from_batches(table.parts.of_bucket(0).rows(keys, as_of=end), SCHEMA) for keys in ranges]
        assert pa.concat_tables(parts).equals(table.scan().read_all())
        assert min(part.num_rows for part in parts) > 500

    def test_ranges_as_of_an_offset_cover_the_earlier_rows(self, store: kvstore.Store) -> None:
        table = store.create_table("u", SCHEMA, primary_key=["name", "n"])
        table.upsert([{"name": str(n), "n": 0, "v": 0} for n in range(0, 3000, 2)])
        then, expected = table.offsets()[0][1], table.scan().read_all()
        table.upsert([{"name": str(n), "n": 0, "v": 1} for n in range(3000)])
        table.delete([(str(n), 0) for n in range(0, 3000, 5)])
        ranges = table.parts.of_bucket(0).split_keys([KeyRange()], 3)
        assert len(ranges) == 3
        parts = [pa.Table.from_batches(table.parts.of_bucket(0).rows(keys, as_of=then), SCHEMA) for keys in ranges]
        assert pa.concat_tables(parts).equals(expected)

    def test_the_size_of_ranges(self, store: kvstore.Store) -> None:
        table = store.create_table("u", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
        table.upsert(pa.table({"k": range(100_000)}))
        shares = table.parts.of_bucket(0)
        whole = shares.row_bytes([KeyRange()])
        halves = shares.split_keys([KeyRange()], 2)
        assert [round(shares.row_bytes(half) / whole, 2) for half in halves] == [0.5, 0.5]
        (tenth,) = shares.keys_where((pc.field("k") >= 20_000) & (pc.field("k") < 30_000), as_of=100_000)
        assert 0.09 < shares.row_bytes([tenth]) / whole < 0.12
        assert len(shares.split_keys([tenth], 3)) == 3


@pytest.mark.parametrize("filter", [None, pc.field("k") >= 0, pc.field("s") > "b"])
def test_batches_of_a_changelog_end_once_they_are_large(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, filter: Any
) -> None:
    """Rows may be large, so their number alone does not limit what a reader holds."""
    table = store.create_table("t", {"k": "int64", "s": "string"}, "k")
    for number in range(40):
        table.upsert([{"k": number % 15, "s": "abcd"[number % 4] * 10_000}])
    whole = table.changelog(filter=filter)
    expected = whole.read_all()
    monkeypatch.setattr(changelog, "READ_BYTES", 100_000)
    batches = list(table.changelog(filter=filter))
    assert pa.Table.from_batches(batches) == expected
    assert len(batches) > 2
    assert max(batch.nbytes for batch in batches) < 200_000
