"""``get`` gives what ``lookup`` gives, without Arrow: any type of key and column, any bucket, rows of any schema."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import CorruptData, KeyTooLarge, SchemaMismatch, Unavailable, UnsupportedOperation
from kvstore.memtable.memtable import Memtable
from kvstore.meta.state import CatalogState
from kvstore.request.row_layout import layout_of
from kvstore.testing.strategies import KEY_TYPES, columns, stored_types
from logformat.catalog.edits import Payload
from logformat.rows.few.single_record import COMPILED_MAX
from tests.conftest import OpenStore
from tests.logformat.damage import bit_flips
from tests.support.calls_made import calls_made

pytestmark = pytest.mark.usefixtures("both_ways")

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("day", pa.date32(), False),
        pa.field("k", pa.decimal128(9, 2), False),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("of", pa.map_(pa.string(), pa.struct([pa.field("n", pa.int16()), pa.field("d", pa.duration("s"))]))),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[str]]:
    """Rows, and the names of their key columns."""
    kinds = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=2))
    others = draw(st.lists(stored_types(), max_size=6))
    size = draw(st.integers(1, 6))
    made = {f"k{nth}": draw(columns(kind, size, nullable=False)) for nth, kind in enumerate(kinds)}
    made |= {f"v{nth}": draw(columns(kind, size)) for nth, kind in enumerate(others)}
    names = draw(st.permutations(list(made)))
    return pa.RecordBatch.from_pydict({name: made[name] for name in names}), [f"k{nth}" for nth in range(len(kinds))]


def outcome(read: Callable[[], Any]) -> str:
    """What a read gives; or the error, where Python has no value for a column."""
    try:
        return repr(read())  # NaN is NaN, True is not 1
    except (ValueError, OverflowError) as error:
        return repr(error)


def looked_up(table: kvstore.Table, key: Any) -> dict[str, Any] | None:
    (row,) = table.lookup([key]).to_pylist()
    return row if row.pop("_found") else None


@settings(max_examples=15)
@given(given=tables(), buckets=st.integers(1, 3), by_last=st.booleans())
def test_a_row_is_the_one_that_lookup_gives(
    given: tuple[pa.RecordBatch, list[str]], buckets: int, by_last: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows, key = given
    with kvstore.open(tmp_path_factory.mktemp("s") / "store") as store:
        table = store.create_table("t", rows.schema, key, buckets=buckets, bucket_key=key[-1:] if by_last else None)
        try:
            table.upsert(rows)
        except KeyTooLarge:
            return
        for place in range(rows.num_rows):
            try:
                (its_key,) = rows.slice(place, 1).select(key).to_pylist()
            except (ValueError, OverflowError):
                continue  # Python can't ask for it
            for asked in (its_key, tuple(its_key.values()), *(its_key.values() if len(key) == 1 else ())):
                expected = outcome(lambda asked=asked: looked_up(table, asked))
                for _ in range(2):
                    assert outcome(lambda asked=asked: table.get(asked)) == expected
                    table.flush()  # then it is read from the last commit


def test_a_key_has_the_value_that_is_stored(open_store: OpenStore) -> None:
    table = open_store().create_table("t", SCHEMA, ["k", "day"], buckets=2, bucket_key="day")
    day = dt.date(2026, 11, 23)
    row = {"at": dt.datetime(2026, 1, 2, 3, 4, 5, 6000, dt.UTC), "tags": ["é", None, ""], "of": {"a": None}}
    table.upsert({**row, "k": 15, "day": day})
    found = table[{"day": day, "k": Decimal("15.0")}]
    assert str(found["k"]) == "15.00"
    assert (found["at"], found["tags"], found["of"]) == (row["at"], ["é", None, ""], [("a", None)])
    assert (Decimal(15), day) in table
    assert (Decimal(16), day) not in table


@pytest.mark.parametrize("buckets", [1, 3])
def test_columns_that_were_added_later_are_null(buckets: int, open_store: OpenStore) -> None:
    store = open_store()
    table = store.create_table("t", pa.schema([("s", pa.string()), ("k", pa.int64())]), "k", buckets=buckets)
    table.upsert([{"s": "é", "k": k} for k in range(4)])
    assert table.get(1) == {"s": "é", "k": 1}
    store.add_columns("t", [pa.field("tags", pa.list_(pa.int8())), pa.field("day", pa.date32())])
    table.upsert({"s": None, "k": 2, "tags": [7, None], "day": None})
    for key in range(5):
        assert table.get(key) == looked_up(table, key)
    assert table[1] == {"s": "é", "k": 1, "tags": None, "day": None}
    assert table[2] == {"s": None, "k": 2, "tags": [7, None], "day": None}


@pytest.mark.parametrize("words", [3, 40])
def test_every_flipped_bit_of_a_row_is_found(
    words: int, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short rows and long ones are summed in two ways."""
    store = open_store()
    table = store.create_table("t", pa.schema([("k", pa.int64()), ("b", pa.binary()), ("day", pa.date32())]), "k")
    table.upsert({"k": 7, "b": bytes(8 * words), "day": dt.date(2026, 1, 1)})
    code = layout_of(store.runtime.definition("t")).single.encode_key(7)
    assert code is not None
    whole = table.bucket(0).handle.value(code)
    assert whole is not None
    for damaged in bit_flips(whole):
        monkeypatch.setattr(BucketHandle, "value", lambda *_, damaged=damaged: damaged)
        with pytest.raises(CorruptData, match="checksum"):
            table.get(7)
    monkeypatch.undo()
    assert table[7]["b"] == bytes(8 * words)


def test_it_does_not_wait_for_an_edit_of_the_catalog(open_store: OpenStore) -> None:
    store = open_store()
    table = store.create_table("t", {"k": "int64"}, "k")
    table.upsert({"k": 1})
    decides, decide = threading.Event(), threading.Event()

    def waits(_: CatalogState) -> Payload:
        decides.set()
        assert decide.wait(60)
        raise Unavailable("Nothing is edited.")

    with ThreadPoolExecutor(2) as pool:
        edit = pool.submit(store.runtime.journal.append, waits)
        assert decides.wait(60)
        try:
            assert pool.submit(table.get, 1).result(timeout=60) == {"k": 1}
        finally:
            decide.set()
        with pytest.raises(Unavailable):
            edit.result()


def test_it_waits_for_no_write_and_never_sees_one_that_fails(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(commit_wait_ms=60_000, commit_idle_ms=60_000)
    table = store.create_table("t", {"k": "int64"}, "k")
    table.upsert({"k": 1})
    table.flush()
    table.upsert({"k": 2})  # acknowledged, and not merged into the index
    seen: list[Any] = []
    store_rows = Memtable.put

    def failing(memtable: Memtable, rows: Any) -> None:
        store_rows(memtable, rows)
        seen.extend(pool.submit(table.get, key).result(60) for key in (1, 2, 3))
        raise CorruptData("planted")

    monkeypatch.setattr(Memtable, "put", failing)
    with ThreadPoolExecutor(1) as pool, pytest.raises(CorruptData, match="planted"):
        table.upsert([{"k": k} for k in range(3, 200)])
    monkeypatch.undo()
    assert seen == [{"k": 1}, {"k": 2}, None]
    table.upsert({"k": 4})
    assert [table.get(key) for key in (2, 3, 4)] == [{"k": 2}, None, {"k": 4}]


def test_a_get_costs_no_more_after_a_refused_row_or_a_compaction(store: kvstore.Store) -> None:
    """When nothing waits for a commit, a get takes the short way."""
    table = store.create_table("t", {"k": "int64", "v": "string"}, "k")
    table.upsert({"k": 1, "v": "x"})
    table.flush()
    assert table.get(1) == {"k": 1, "v": "x"}

    def cost() -> int:
        """Calls of a get, without what the first ones after a commit do once."""
        return min(calls_made(lambda: table.get(1)) for _ in range(5))

    before = cost()
    with pytest.raises(SchemaMismatch):
        table.upsert({"k": 1, "v": 5})
    assert cost() == before
    table.compact()
    assert cost() == before


def test_a_scalar_of_arrow_is_a_key_though_python_has_no_such_value(open_store: OpenStore) -> None:
    far = pa.array([400_000_000_000], pa.timestamp("s"))
    table = open_store().create_table("t", pa.schema([("k", far.type), ("n", pa.int64())]), "k")
    table.upsert(pa.table({"k": far, "n": [1]}))
    assert table.lookup([far[0]])["_found"].to_pylist() == [True]
    with pytest.raises(UnsupportedOperation, match="read the row as Arrow"):
        table.get(far[0])
    assert far[0] in table
    table.delete(far[0])
    assert far[0] not in table
    assert len(table) == 0


def test_a_scalar_of_arrow_is_the_same_key_as_its_value(open_store: OpenStore) -> None:
    table = open_store().create_table("t", {"k": "string", "n": "int64"}, "k")
    key = pa.scalar("a")
    table[key] = {"k": "a", "n": 5}
    assert table.increment(key, {"n": 1}, default={"k": "a"}) == table[key] == {"k": "a", "n": 6}


@pytest.mark.parametrize("columns", [COMPILED_MAX - 2, COMPILED_MAX + 1])
@pytest.mark.parametrize("key", [["k"], ["k", "c0"]])
@pytest.mark.parametrize("is_first", [True, False])
def test_wide_rows(open_store: OpenStore, columns: int, key: list[str], is_first: bool) -> None:
    """Decoded by a function that is compiled, or by a loop."""
    fields = [(f"c{number}", pa.string() if number % 2 else pa.int64()) for number in range(columns)]
    fields.insert(0 if is_first else 5, ("k", pa.int64()))
    table = open_store().create_table("t", pa.schema(fields), key)
    row = {name: None if name[-1] == "7" else len(name) if kind == pa.int64() else name for name, kind in fields}
    table.upsert([row, {**row, "k": 99}])
    for each in (row, {**row, "k": 99}):
        found = table.get(tuple(each[name] for name in key))
        assert found == each
        assert list(found) == table.schema.names


def test_names_of_columns_are_names_whatever_they_are(open_store: OpenStore) -> None:
    names = ["'", '"', "{k}", "k: 1}", "\\", "import os", "name0", "cell0", "None", "record", "key", "decode", "é"]
    fields = [pa.field("k", pa.int64()), *(pa.field(name, pa.string()) for name in names)]
    nested = pa.field("nested", pa.struct([pa.field(name, pa.int64()) for name in names]))
    table = open_store().create_table("t", pa.schema([*fields, nested]), ["k", "'"])
    row = {"k": 1, **dict(zip(names, map(str, range(99)), strict=False)), "nested": dict.fromkeys(names, 7)}
    table.upsert([row, {**row, "'": "other", "nested": None, "é": None}])
    assert table.get((1, "0")) == row
    assert table.get({"'": "other", "k": 1}) == {**row, "'": "other", "nested": None, "é": None}
