"""A unique index allows no two rows with the same values, whatever writes them and wherever the rows are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import RowsRefused, UniqueViolation, UnsupportedOperation
from tests.conftest import OpenStore
from tests.support.kept import KeptStore

COLUMNS = {"id": "int64", "mail": "string", "age": "int32"}
BY_HAND: dict[str, Any] = {"commit_wait_ms": 600_000, "commit_idle_ms": 600_000}
LONG = 300 * "x"
MAILS = [None, "", "a", "b", LONG + "1", LONG + "2"]


def with_unique(store: kvstore.Store, **options: Any) -> kvstore.Table:
    table = store.create_table("t", COLUMNS, "id", **options)
    store.create_index("t", "by_mail", ["mail"], unique=True)
    return table


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["upsert", "partial"]),
            st.dictionaries(st.integers(0, 6), st.sampled_from(MAILS), min_size=1, max_size=3),
        ),
        st.tuples(st.just("update"), st.tuples(st.integers(0, 6), st.sampled_from(MAILS))),
        st.tuples(st.just("delete"), st.integers(0, 6)),
        st.tuples(st.sampled_from(["flush", "reopen"]), st.none()),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptStore]:
    kept = KeptStore(tmp_path_factory.mktemp("kept") / "store", **BY_HAND)
    yield kept
    kept.store.close()


@given(STEPS)
def test_a_model_and_the_table_refuse_the_same_requests(kept: KeptStore, steps: Any) -> None:
    store = kept.empty()
    table = with_unique(store)
    model: dict[int, str | None] = {}
    for step, argument in steps:
        after = dict(model)
        try:
            match step:
                case "upsert" | "partial":
                    after |= argument
                    rows = [{"id": key, "mail": mail} for key, mail in argument.items()]
                    table.upsert(rows, columns=["id", "mail"] if step == "partial" else None)
                case "update":
                    after |= {argument[0]: argument[1]} if argument[0] in after else {}
                    table.update_where(pc.field("id") == argument[0], {"mail": argument[1]})
                case "delete":
                    after.pop(argument, None)
                    table.delete([argument])
                case "flush":
                    table.flush()
                case "reopen":
                    store = kept.reopened()
                    table = store.table("t")
            refused = None
        except UniqueViolation as error:
            refused = error
        mails = [mail for mail in after.values() if mail is not None]
        assert (len(set(mails)) < len(mails)) == (refused is not None)
        if refused is None:
            model = after
        else:
            assert mails.count(refused.value) > 1
            assert (refused.index, after[refused.key]) == ("by_mail", refused.value)
        assert {row["id"]: row["mail"] for row in table} == model
    assert store.check().findings == []


def test_rows_exchange_values_in_one_request(store: kvstore.Store) -> None:
    table = with_unique(store)
    table.upsert([{"id": 1, "mail": "a"}, {"id": 2, "mail": "b"}])
    table.upsert([{"id": 1, "mail": "b"}, {"id": 2, "mail": "a"}])
    assert table.find_one(mail="a") == {"id": 2, "mail": "a", "age": None}
    with pytest.raises(UniqueViolation) as found:
        table.upsert([{"id": 3, "mail": "c"}, {"id": 4, "mail": "c"}])
    assert (found.value.index, found.value.value, found.value.key) == ("by_mail", "c", 3)
    assert table.count() == 2


def test_all_ways_of_writing_are_tested(store: kvstore.Store) -> None:
    table = with_unique(store)
    table.upsert([{"id": 1, "mail": "a", "age": 5}, {"id": 2, "mail": "b", "age": 6}])
    row = pa.RecordBatch.from_pylist([{"id": 3, "mail": "a", "age": None}], table.schema)
    for flushed in (False, True):
        if flushed:
            table.flush()
        for write in (
            lambda: table.put_if({"id": 3, "mail": "a"}, expected=None),
            lambda: table.update_where(pc.field("id") == 2, {"mail": "a"}),
            lambda: table.apply_epoch(kvstore.Changes.upserts(row), "w", 1),
            lambda: table.upsert([{"id": number, "mail": "a" if number == 99 else None} for number in range(9, 100)]),
        ):
            with pytest.raises(UniqueViolation):
                write()
        with pytest.raises(UniqueViolation), store.transaction() as tx:
            tx.upsert("t", {"id": 3, "mail": "a"})
        assert table.count() == 2
    table.delete([1])
    table.upsert({"id": 3, "mail": "a"})
    assert table.find_one(mail="a") == {"id": 3, "mail": "a", "age": None}


def test_rows_of_a_transaction_are_known_to_the_next_write(store: kvstore.Store) -> None:
    table, other = with_unique(store), store.create_table("other", COLUMNS, "id")
    table.upsert({"id": 1, "mail": "a"})
    with store.transaction() as at:
        at.upsert("t", {"id": 2, "mail": "b"})
        at.upsert("other", {"id": 2, "mail": "b"})
    with pytest.raises(UniqueViolation):
        table.upsert({"id": 3, "mail": "b"})
    assert (table.count(), other.count()) == (2, 1)


def test_rows_that_are_there_twice_allow_no_unique_index(store: kvstore.Store) -> None:
    table = store.create_table("t", COLUMNS, "id")
    table.upsert([{"id": number, "mail": LONG + str(number), "age": number % 5} for number in range(10)])
    table.upsert([{"id": 20, "mail": LONG + "7"}, {"id": 21, "mail": None}, {"id": 22, "mail": None}])
    before = table.options
    with pytest.raises(UniqueViolation) as found:
        store.create_index("t", "by_mail", "mail", unique=True)
    assert (found.value.value, found.value.key) == (LONG + "7", 20)
    assert table.indexes == {}
    assert table.options == before, "the catalog never had the index, so a kill can't have left it there"
    table.delete([20])
    store.create_index("t", "by_mail", "mail", unique=True)
    store.create_index("t", "by_both", ["age", "id"], unique=True)
    with pytest.raises(UniqueViolation, match=r"allows one"):
        table.upsert({"id": 20, "mail": LONG + "7"})


def test_of_several_buckets_only_what_has_the_bucket_key(store: kvstore.Store) -> None:
    table = store.create_table("t", COLUMNS, ["id", "age"], buckets=3, bucket_key=["id"])
    with pytest.raises(UnsupportedOperation, match=r"bucket key"):
        store.create_index("t", "by_mail", "mail", unique=True)
    store.create_index("t", "by_mail", ["mail", "id"], unique=True)
    table.upsert({"id": 1, "age": 1, "mail": "a"})
    with pytest.raises(UniqueViolation) as found:
        table.upsert({"id": 1, "age": 2, "mail": "a"})
    assert (found.value.value, found.value.key) == (("a", 1), (1, 1))
    table.upsert({"id": 2, "age": 2, "mail": "a"})
    assert table.count() == 2


def test_it_holds_after_the_index_is_rebuilt(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        with_unique(store).upsert([{"id": number, "mail": f"m{number}"} for number in range(100)])
    with open_store() as store, pytest.raises(UniqueViolation):
        store.table("t").upsert({"id": 200, "mail": "m7"})


def test_a_row_that_python_has_no_value_for_is_named(open_store: OpenStore) -> None:
    """Its other columns are not shown, and its key is shown as JSON; the bucket goes on."""
    far = pa.array([400_000_000_000], pa.timestamp("s"))
    store = open_store()
    table = store.create_table("t", pa.schema([("at", far.type), ("mail", pa.string()), ("end", far.type)]), "at")
    store.create_index("t", "by_mail", ["mail"], unique=True)
    table.upsert(pa.table({"at": far, "mail": ["a"], "end": far}))
    other = pa.table({"at": pa.array([0], far.type), "mail": ["a"], "end": far})
    with table.writer() as writer:
        writer.upsert(other)  # in the bucket's own thread, which such an error would have ended
        with pytest.raises(RowsRefused) as refused:
            writer.flush()
    [row] = refused.value.refused
    assert isinstance(row.error, UniqueViolation)
    assert row.error.where["key"] == "14645-06-30T15:06:40"
    with pytest.raises(UniqueViolation):
        table.upsert(other)
    table.upsert(other.set_column(1, "mail", pa.array(["b"])))
    assert len(table) == 2
