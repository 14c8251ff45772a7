"""``with store.transaction() as tx``: what it reads and refuses, and that all of it is written or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import (
    DeletionDisabled,
    InvalidRequest,
    NoSuchTable,
    OutOfOrderSequence,
    SchemaMismatch,
    StoreClosed,
    TransactionConflict,
    UnsupportedOperation,
)
from kvstore.transaction.table_changes import TableChanges
from tests.support.tables import rows_of

ORDERS = {"id": "int64 not null", "item": "string", "n": "int64"}
NAN = float("nan")
SUMS: dict[str, Any] = {"primary_key": "k", "merge_engine": kvstore.Aggregate({"n": "sum"})}
STOCK = {"item": "string not null", "left": "int64", "price": "double"}


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 3], ids=["one bucket", "three buckets"])
def store(request: pytest.FixtureRequest, open_store: Callable[..., kvstore.Store]) -> kvstore.Store:
    store = open_store()
    store.create_table("orders", ORDERS, primary_key="id")
    store.create_table("stock", STOCK, primary_key="item", buckets=request.param)
    store["stock"].upsert(
        [{"item": "apple", "left": 3, "price": 0.5}, {"item": "pear", "left": 1, "price": float("nan")}]
    )
    return store


def orders(store: kvstore.Store) -> list[dict[str, Any]]:
    return rows_of(store["orders"])


def test_all_of_it_is_written(store: kvstore.Store) -> None:
    with store.transaction() as tx:
        stock = tx.get("stock", "apple")
        assert stock is not None
        tx.upsert("stock", stock | {"left": stock["left"] - 1})
        tx.upsert("orders", [{"id": 1, "item": "apple", "n": 1}, {"id": 2, "item": "apple", "n": 0}])
        tx.delete("orders", [2])
        tx.delete("stock", "pear")
        assert tx.result is None
    assert orders(store) == [{"id": 1, "item": "apple", "n": 1}]
    assert rows_of(store["stock"]) == [{"item": "apple", "left": 2, "price": 0.5}]
    assert tx.result is not None
    assert {name: sorted(buckets) for name, buckets in tx.result.offsets.items()} == {
        "stock": list(range(store["stock"].buckets)),
        "orders": [0],
    }
    assert not tx.result.duplicated
    assert store.check().ok


def test_it_reads_what_it_wrote_and_others_do_not(store: kvstore.Store) -> None:
    with store.transaction() as tx:
        tx.upsert("orders", {"id": 1, "item": "apple"})
        assert tx.get("orders", 1) == {"id": 1, "item": "apple", "n": None}
        assert store["orders"].get(1) is None
        tx.delete("orders", {"id": 1})
        assert tx.get("orders", 1) is None
        tx.upsert("orders", [{"id": 1, "n": 1}, {"id": 1, "n": 2}])
        assert tx.get("orders", (1,)) == {"id": 1, "item": None, "n": 2}
    assert orders(store) == [{"id": 1, "item": None, "n": 2}]


@pytest.mark.parametrize("leave", [ValueError, KeyboardInterrupt, TransactionConflict])
def test_a_block_that_is_left_by_an_error_writes_nothing(store: kvstore.Store, leave: type[BaseException]) -> None:
    before = store["stock"].offsets(), store["orders"].offsets()
    with pytest.raises(leave), store.transaction() as tx:  # noqa: PT012
        tx.upsert("orders", {"id": 1})
        tx.delete("stock", "apple")
        raise leave("no")
    assert tx.result is None
    assert (store["stock"].offsets(), store["orders"].offsets()) == before


@pytest.mark.parametrize("rows", [1, 100])
def test_a_value_of_a_column_that_is_dropped_meanwhile_is_refused(store: kvstore.Store, rows: int) -> None:
    before = store["stock"].offsets(), store["orders"].offsets()
    with pytest.raises(SchemaMismatch, match="dropped") as refused, store.transaction() as tx:  # noqa: PT012
        tx.upsert("orders", [{"id": id, "item": "apple", "n": 1} for id in range(rows)])
        tx.delete("stock", "apple")
        store.drop_columns("orders", ["n"])
    assert refused.value.where["dropped"] == ["n"]
    assert (store["stock"].offsets(), store["orders"].offsets()) == before
    with store.transaction() as tx:
        tx.upsert("orders", [{"id": id} for id in range(rows)])
        tx.delete("stock", "apple")
        store.drop_columns("orders", ["item"])
    assert len(orders(store)) == rows


@pytest.mark.parametrize("rows", [1, 100])
def test_a_column_that_is_dropped_while_the_transaction_is_committed(
    store: kvstore.Store, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store["stock"].offsets(), store["orders"].offsets()
    check, checked = TableChanges.check_table, []

    def late(changes: TableChanges) -> None:
        check(changes)
        checked.append(changes)
        if len(checked) == 2:
            store.drop_columns("orders", ["n"])

    monkeypatch.setattr(TableChanges, "check_table", late)
    with pytest.raises(SchemaMismatch, match="dropped"), store.transaction() as tx:  # noqa: PT012
        tx.upsert("orders", [{"id": id, "item": "apple", "n": 1} for id in range(rows)])
        tx.delete("stock", "apple")
    assert len(checked) >= 2
    assert (store["stock"].offsets(), store["orders"].offsets()) == before
    assert not list((store.path / "staging").glob("*"))
    store["orders"].upsert({"id": 1})
    assert store.check().ok


def test_an_epoch_that_writes_nothing_is_refused(store: kvstore.Store) -> None:
    with pytest.raises(InvalidRequest, match="writes nothing"), store.transaction(writer="w", epoch=1) as tx:
        tx.get("stock", "apple")
    assert "w" not in store["stock"].writers


def test_nothing_to_write_writes_nothing(store: kvstore.Store) -> None:
    before = store["stock"].offsets()
    with store.transaction() as tx:
        tx.get("stock", "apple")
        tx.upsert("orders", [])
    assert tx.result == kvstore.TransactionResult({})
    assert store["stock"].offsets() == before


# What was read

OTHERS: dict[str, Callable[[kvstore.Store], object]] = {
    "another row": lambda store: store["stock"].upsert({"item": "apple", "left": 1, "price": 0.5}),
    "no row": lambda store: store["stock"].delete("apple"),
    "a row where there was none": lambda store: store["stock"].upsert({"item": "kiwi"}),
}
READS: dict[str, Callable[[kvstore.Transaction], object]] = {
    "read": lambda tx: (tx.get("stock", "apple"), tx.get("stock", "kiwi")),
    "expected": lambda tx: (
        tx.expect("stock", "apple", {"left": 3, "price": 0.5}),
        tx.expect("stock", "kiwi", None),
    ),
    "replaced": lambda tx: (
        tx.put_if("stock", {"item": "apple", "left": 2}, {"item": "apple", "left": 3, "price": 0.5}),
        tx.put_if("stock", {"item": "kiwi", "left": 2}, None),
    ),
}


@pytest.mark.parametrize("written", ["orders", "stock"])
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("other", OTHERS)
def test_a_row_that_was_read_and_changes_is_a_conflict(
    store: kvstore.Store, other: str, reads: str, written: str
) -> None:
    row: dict[str, Any] = {"id": 1} if written == "orders" else {"item": "apple", "left": 9}
    with pytest.raises(TransactionConflict) as conflict, store.transaction() as tx:  # noqa: PT012
        READS[reads](tx)
        tx.upsert(written, row)
        OTHERS[other](store)
        after = str(rows_of(store["stock"]))
    assert conflict.value.where["table"] == "stock"
    assert conflict.value.where["key"] == {"item": "kiwi" if other == "a row where there was none" else "apple"}
    assert (str(rows_of(store["stock"])), orders(store)) == (after, [])
    assert not list((store.path / "staging").glob("*"))


@pytest.mark.parametrize("reads", READS)
def test_a_row_that_changes_and_changes_back_is_no_conflict(store: kvstore.Store, reads: str) -> None:
    with store.transaction() as tx:
        READS[reads](tx)
        tx.upsert("orders", {"id": 1})
        before = store["stock"]["apple"]
        store["stock"].delete("apple")
        store["stock"].upsert(before)
        store["stock"].upsert({"item": "plum"})
    assert [row["id"] for row in orders(store)] == [1]


def test_a_row_is_read_once(store: kvstore.Store) -> None:
    with pytest.raises(TransactionConflict), store.transaction() as tx:  # noqa: PT012
        first = tx.get("stock", "apple")
        store["stock"].upsert({"item": "apple", "left": 0})
        assert tx.get("stock", "apple") == first
        tx.upsert("orders", {"id": 1})


def test_nan_is_equal_to_itself(store: kvstore.Store) -> None:
    with store.transaction() as tx:
        tx.expect("stock", "pear", {"left": 1, "price": float("nan")})
        tx.upsert("orders", {"id": 1})
    assert len(orders(store)) == 1


WRONG: dict[str, Callable[[kvstore.Transaction], object]] = {
    "row": lambda tx: tx.expect("stock", "apple", {"left": 4, "price": 0.5}),
    "column": lambda tx: tx.expect("stock", "apple", {"left": 3}),
    "no row": lambda tx: tx.expect("stock", "apple", None),
    "a row": lambda tx: tx.expect("stock", "kiwi", {"left": 1}),
    "put over a row": lambda tx: tx.put_if("stock", {"item": "apple"}, None),
    "put over another row": lambda tx: tx.put_if("stock", {"item": "apple"}, {"left": 9, "price": 0.5}),
    "what it wrote": lambda tx: (tx.upsert("stock", {"item": "kiwi"}), tx.put_if("stock", {"item": "kiwi"}, None)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_row_that_is_not_the_expected_one_is_a_conflict_at_once(store: kvstore.Store, wrong: str) -> None:
    with pytest.raises(TransactionConflict, match="run it again"), store.transaction() as tx:  # noqa: PT012
        tx.upsert("orders", {"id": 1})
        WRONG[wrong](tx)
        pytest.fail("it went on")
    assert orders(store) == []


def test_what_the_transaction_itself_wrote_is_what_it_expects(store: kvstore.Store) -> None:
    with store.transaction() as tx:
        tx.upsert("stock", {"item": "kiwi", "left": 5})
        tx.put_if("stock", {"item": "kiwi", "left": 4}, {"item": "kiwi", "left": 5})
        tx.expect("stock", "kiwi", {"left": 4})
        tx.delete("stock", "kiwi")
        tx.expect("stock", "kiwi", None)
    assert store["stock"].get("kiwi") is None


# Once


def test_a_transaction_that_is_sent_again_is_written_once(store: kvstore.Store, store_path: Path) -> None:
    def send(store: kvstore.Store, epoch: int, *tables: str) -> bool:
        with store.transaction(writer="w", epoch=epoch) as tx:
            for name in tables:
                row: dict[str, Any] = {"id": epoch, "n": 1} if name == "orders" else {"item": str(epoch)}
                tx.upsert(name, row)
        assert tx.result is not None
        return tx.result.duplicated

    assert [send(store, epoch, "orders", "stock") for epoch in (5, 5, 6, 6, 5)] == [False, True, False, True, True]
    # Tables need not take part each time.
    assert [send(store, epoch, "orders") for epoch in (7, 8, 8)] == [False, False, True]
    assert [send(store, epoch, "stock", "orders") for epoch in (9, 9)] == [False, True]
    assert [send(store, epoch, "stock") for epoch in (12, 12)] == [False, True]
    with pytest.raises(OutOfOrderSequence):
        send(store, 6, "stock")
    assert [row["id"] for row in orders(store)] == [5, 6, 7, 8, 9]
    assert {"5", "6", "9", "12"} < {row["item"] for row in rows_of(store["stock"])}
    store.close()
    with kvstore.open(store_path) as again:
        assert send(again, 12, "stock")
        assert not send(again, 13, "orders", "stock")
        assert again.check().ok


def test_an_epoch_that_was_of_other_tables_is_refused(store: kvstore.Store) -> None:
    def send(epoch: int, *, stock: bool, reads: str = "stock") -> bool:
        with store.transaction(writer="w", epoch=epoch) as tx:
            tx.get(reads, 1 if reads == "orders" else "apple")
            tx.upsert("orders", {"id": epoch})
            if stock:
                tx.upsert("stock", {"item": "kiwi"})
        assert tx.result is not None
        return tx.result.duplicated

    assert not send(0, stock=False, reads="orders")
    with pytest.raises(InvalidRequest, match="to other tables") as refused:
        send(0, stock=True)
    assert refused.value.where["new_tables"] == ["stock"]
    assert store["stock"].get("kiwi") is None
    # A table that is only read does not count.
    assert send(0, stock=False)
    assert not send(1, stock=True)
    assert send(1, stock=False)
    assert send(1, stock=True)
    assert not list((store.path / "staging").glob("*"))


def test_a_conflict_uses_up_no_epoch(store: kvstore.Store) -> None:
    for fails in (True, False):
        try:
            with store.transaction(writer="w", epoch=0) as tx:
                tx.get("stock", "apple")
                tx.upsert("orders", {"id": 1})
                if fails:
                    store["stock"].upsert({"item": "apple", "left": 0})
        except TransactionConflict:
            assert fails
    assert tx.result is not None
    assert not tx.result.duplicated
    assert len(orders(store)) == 1


def test_an_epoch_before_a_conflict_is_not_written_again(store: kvstore.Store) -> None:
    """The name counts from the epoch that conflicted on, under which nothing was written."""

    def send(epoch: int, *, disturbed: bool = False) -> None:
        with store.transaction(writer="w", epoch=epoch) as tx:
            tx.get("stock", "apple")
            tx.upsert("orders", {"id": epoch})
            if disturbed:
                store["stock"].delete("apple")

    send(5)
    with pytest.raises(TransactionConflict):
        send(8, disturbed=True)
    end = store["orders"].offsets()
    with pytest.raises(OutOfOrderSequence):
        send(5)
    assert store["orders"].offsets() == end
    send(8)
    assert [row["id"] for row in orders(store)] == [5, 8]


# What is refused

REFUSED: dict[str, tuple[type[Exception], Callable[[kvstore.Store, kvstore.Transaction], object]]] = {
    "no table": (NoSuchTable, lambda _, tx: tx.get("nope", 1)),
    "no column": (SchemaMismatch, lambda _, tx: tx.upsert("orders", {"id": 2, "nope": 1})),
    "no key": (SchemaMismatch, lambda _, tx: tx.get("orders", "one")),
    "no row": (SchemaMismatch, lambda _, tx: tx.upsert("orders", 17)),
    "other keys": (InvalidRequest, lambda _, tx: tx.put_if("orders", {"id": 1}, {"id": 2})),
    "a key of a log": (UnsupportedOperation, lambda _, tx: tx.get("log", 1)),
    "a delete from a log": (UnsupportedOperation, lambda _, tx: tx.delete("log", 1)),
    "a sum that is not known": (
        UnsupportedOperation,
        lambda _, tx: (tx.upsert("sums", {"k": 1, "n": 1}), tx.get("sums", 1)),
    ),
    "an expected sum": (UnsupportedOperation, lambda _, tx: tx.put_if("sums", {"k": 1, "n": 1}, None)),
    "a delete that the table refuses": (DeletionDisabled, lambda _, tx: tx.delete("kept", 1)),
    "a table that is gone": (NoSuchTable, lambda store, tx: (tx.upsert("kept", {"k": 1}), store.drop_table("kept"))),
    "a store that is closed": (StoreClosed, lambda store, _: store.close()),
    "it is in use": (InvalidRequest, lambda _, tx: tx.__enter__()),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_is_refused_leaves_nothing(store: kvstore.Store, store_path: Path, refused: str) -> None:
    store.create_table("log", {"k": "int64"})
    store.create_table(
        "sums", {"k": "int64", "n": "int64"}, primary_key="k", merge_engine=kvstore.Aggregate({"n": "sum"})
    )
    store.create_table("kept", {"k": "int64"}, primary_key="k", delete_behavior="disable")
    error, call = REFUSED[refused]
    with pytest.raises(error), store.transaction() as tx:  # noqa: PT012
        tx.upsert("orders", {"id": 1})
        tx.delete("stock", "apple")
        call(store, tx)
    store.close()
    with kvstore.open(store_path) as again:
        assert orders(again) == []
        assert len(rows_of(again["stock"])) == 2
        assert not list((store_path / "staging").glob("*"))
        assert again.check().ok


def test_a_transaction_that_failed_is_used_up(store: kvstore.Store) -> None:
    tx = store.transaction()
    with pytest.raises(ValueError, match="no"), tx:  # noqa: PT012
        tx.upsert("orders", {"id": 1})
        raise ValueError("no")
    with pytest.raises(InvalidRequest, match="used once"), tx:
        tx.upsert("stock", {"item": "kiwi"})
    assert orders(store) == []


def test_a_table_that_ignores_deletes_ignores_them(store: kvstore.Store) -> None:
    store.create_table("kept", {"k": "int64"}, primary_key="k", delete_behavior="ignore").upsert({"k": 1})
    with store.transaction() as tx:
        tx.delete("kept", 1)
        assert tx.get("kept", 1) == {"k": 1}
        tx.upsert("orders", {"id": 1})
    assert rows_of(store["kept"]) == [{"k": 1}]


def test_a_transaction_is_used_once_and_in_its_block(store: kvstore.Store) -> None:
    tx = store.transaction()
    with pytest.raises(InvalidRequest, match="within its block"):
        tx.get("orders", 1)
    with tx:
        tx.upsert("orders", {"id": 1})
    with pytest.raises(InvalidRequest, match="within its block"):
        tx.upsert("orders", {"id": 2})
    with pytest.raises(InvalidRequest, match="used once"), tx:
        pass


@pytest.mark.parametrize(
    "given",
    [
        {"writer": "w"},
        {"epoch": 1},
        {"writer": "w", "epoch": -1},
        {"writer": "w", "epoch": "1"},
        {"writer": "", "epoch": 1},
        {"writer": 7, "epoch": 1},
    ],
)
def test_epochs_that_are_not_possible(store: kvstore.Store, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest), store.transaction(**given):
        pytest.fail("it began")


def test_a_store_that_may_only_be_read_has_none(store: kvstore.Store, store_path: Path) -> None:
    with kvstore.open(store_path, read_only=True) as reader, pytest.raises(UnsupportedOperation):
        reader.transaction()


# Tables of every kind


def test_a_log_and_a_table_that_merges_take_part(store: kvstore.Store) -> None:
    store.create_table("log", {"what": "string"}, buckets=2)
    store.create_table(
        "sums", {"k": "int64", "n": "int64"}, primary_key="k", merge_engine=kvstore.Aggregate({"n": "sum"})
    )
    store.create_table("named", {"name": "string", "id": "int64"}, primary_key="name", auto_increment="id")
    for _ in range(2):
        with store.transaction() as tx:
            tx.upsert("log", {"what": "sold"})
            tx.upsert("sums", [{"k": 1, "n": 2}, {"k": 1, "n": 3}])
            tx.upsert("named", {"name": "apple"})
    assert [row["what"] for batch in store["log"].changelog() for row in batch.to_pylist()] == ["sold"] * 2
    assert rows_of(store["sums"]) == [{"k": 1, "n": 10}]
    assert rows_of(store["named"]) == [{"name": "apple", "id": 1}]


@dataclass
class Order:
    id: int
    item: str
    n: int


@pytest.mark.parametrize(
    "data",
    [
        Order(1, "apple", 2),
        [Order(1, "apple", 2)],
        pa.table({"id": [1], "item": ["apple"], "n": [2]}),
        lambda: iter([{"id": 1, "item": "apple", "n": 2}]),
    ],
    ids=["dataclass", "list", "Arrow", "iterator"],
)
def test_rows_come_in_every_form(store: kvstore.Store, data: Any) -> None:
    with store.transaction() as tx:
        tx.upsert("orders", data() if callable(data) else data)
        tx.delete("stock", pa.array(["apple", "pear"]))
    assert orders(store) == [{"id": 1, "item": "apple", "n": 2}]
    assert rows_of(store["stock"]) == []


ALTERED: dict[str, Callable[[kvstore.Store], object]] = {
    "renamed": lambda store: store.rename_columns("stock", {"left": "there"}),
    "added": lambda store: store.add_columns("stock", [pa.field("colour", pa.string())]),
}


@pytest.mark.parametrize("altered", ALTERED)
@pytest.mark.parametrize("written", ["orders", "stock"])
def test_columns_may_be_renamed_or_added_meanwhile(store: kvstore.Store, written: str, altered: str) -> None:
    with store.transaction() as tx:
        row = tx.get("stock", "apple")
        assert row is not None
        tx.upsert("stock", row | {"left": 2})
        if written == "orders":
            tx.upsert("orders", {"id": 1})
        ALTERED[altered](store)
    expected = (
        {"item": "apple", "there": 2, "price": 0.5} if altered == "renamed" else row | {"left": 2, "colour": None}
    )
    assert store["stock"]["apple"] == expected


def test_a_table_that_is_renamed_meanwhile_is_one_table(store: kvstore.Store) -> None:
    with store.transaction() as tx:
        tx.upsert("orders", {"id": 1, "n": 1})
        store.rename_table("orders", "sales")
        assert tx.get("sales", 1) == {"id": 1, "item": None, "n": 1}
        tx.upsert("sales", {"id": 2})
        tx.upsert("stock", {"item": "kiwi"})
    assert [row["id"] for row in rows_of(store["sales"])] == [1, 2]


@pytest.mark.parametrize("behavior", ["disable", "ignore"])
@pytest.mark.parametrize("rows", [1, 2000])
@pytest.mark.parametrize("others", [False, True])
def test_deletes_that_are_disabled_meanwhile_are_refused(
    store: kvstore.Store, behavior: Any, rows: int, others: bool
) -> None:
    store["orders"].upsert([{"id": number} for number in range(rows)])

    def delete() -> None:
        with store.transaction() as tx:
            tx.delete("orders", list(range(rows)))
            if others:
                tx.upsert("stock", {"item": "plum"})
            store.alter_table("orders", delete_behavior=behavior)

    with pytest.raises(DeletionDisabled):
        delete()
    assert len(store["orders"]) == rows
    assert "plum" not in store["stock"]
    with store.transaction() as tx:  # without a delete it goes on
        tx.upsert("orders", {"id": rows})
        store.alter_table("orders", delete_behavior="allow")
    assert len(store["orders"]) == rows + 1


def test_an_expected_row_of_another_key_is_no_conflict(store: kvstore.Store) -> None:
    for key in ("apple", "not there"):
        with pytest.raises(InvalidRequest, match="another key"), store.transaction() as tx:
            tx.expect("stock", key, {"item": "pear", "left": 3, "price": 0.5})
    with pytest.raises(SchemaMismatch), store.transaction() as tx:
        tx.expect("stock", "apple", 7)


def test_a_column_that_the_table_fills_is_not_expected(store: kvstore.Store) -> None:
    filled = store.create_table("filled", {"k": "string", "id": "int64", "v": "int64"}, "k", auto_increment="id")
    filled.upsert({"k": "a", "v": 1})
    with store.transaction() as tx:
        tx.expect("filled", "a", {"v": 1})
        tx.expect("filled", "a", filled["a"])
        tx.upsert("filled", {"k": "a", "v": 2})
    assert filled["a"]["v"] == 2
    with pytest.raises(TransactionConflict), store.transaction() as tx:
        tx.expect("filled", "a", {"v": 1})


def test_a_key_that_python_has_no_value_for_is_shown_as_json(store: kvstore.Store) -> None:
    far = pa.array([400_000_000_000], pa.timestamp("s"))
    store.create_table("far", pa.schema([("k", far.type)]), "k").upsert(pa.table({"k": far}))
    with pytest.raises(TransactionConflict) as conflict, store.transaction() as tx:
        tx.expect("far", np.datetime64(400_000_000_000, "s"), None)
    assert conflict.value.where["key"] == {"k": "14645-06-30T15:06:40"}
