"""A call that reads the definition of its table more than once, while columns exchange their names between two reads.

It goes by the names of one moment: what it writes or returns is as if the rename came before it or after it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.errors import SchemaMismatch
from tests.support.renames import at_reads, reads_of

Rows = list[dict[str, Any]]
ROWS = [{"k": "a", "v": 20, "w": 1}, {"k": "b", "v": 1, "w": 20}]


def swapped(rows: Rows, one: str = "v", other: str = "w") -> Rows:
    """What rows are once two columns have exchanged their names."""
    return [{**row, one: row[other], other: row[one]} for row in rows]


class Swaps:
    """A table of which two columns exchange their names."""

    def __init__(
        self, store: kvstore.Store, rows: Rows, key: list[str], names: tuple[str, str], **options: Any
    ) -> None:
        self.store, self.rows, self.names = store, rows, names
        schema = {name: "string" if name == "k" else "int64" for name in rows[0]}
        self.table = store.create_table("t", schema, key, **options)
        self.is_swapped = False

    def swap(self) -> None:
        one, other = self.names
        self.store.rename_columns("t", {one: other, other: one})
        self.is_swapped = not self.is_swapped

    def reset(self) -> None:
        """The rows and the names of the beginning."""
        if self.is_swapped:
            self.swap()
        for key in self.table.scan(list(self.table.primary_key or ())).read_all().to_pylist():
            self.table.delete(key)
        self.table.upsert(self.rows)

    def now(self) -> Rows:
        """Rows, by the names of the beginning."""
        rows = sorted(self.table.to_arrow().to_pylist(), key=lambda row: sorted(row.items(), key=str))
        return sorted(swapped(rows, *self.names) if self.is_swapped else rows, key=str)

    def assert_one_moment(self, call: Callable[[], object]) -> None:
        """Whatever a call does, it does by the names before a swap or after it, at whichever read that comes."""
        possible = []
        for before in (False, True):
            self.reset()
            if before:
                self.swap()
            reads = reads_of(call)
            possible.append(self.now())
        assert possible[0] != possible[1]
        for nth in range(1, reads + 1):
            self.reset()
            expected = [*possible, self.now()]
            try:
                with at_reads({nth: self.swap}):
                    call()
            except SchemaMismatch:
                assert self.now() == expected[2], "nothing was written"
                continue
            assert self.now() in possible, f"at read {nth}"


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 3])
def pair(request: pytest.FixtureRequest, store: kvstore.Store) -> Swaps:
    return Swaps(store, ROWS, ["k"], ("v", "w"), buckets=request.param)


def test_an_update_tests_rows_by_the_names_of_one_moment(pair: Swaps) -> None:
    pair.assert_one_moment(lambda: pair.table.update_where(pc.field("v") > 10, {"v": pc.field("v") + 5}))


def test_a_conditional_delete_finds_rows_by_the_names_of_one_moment(pair: Swaps) -> None:
    pair.assert_one_moment(lambda: pair.table.delete(where=pc.field("v") > 10))


@pytest.mark.parametrize("write", ["set", "replace"])
def test_a_key_is_of_one_moment(store: kvstore.Store, write: str) -> None:
    rows = [{"a": 1, "b": 2, "x": 0}, {"a": 5, "b": 6, "x": 0}]
    swaps = Swaps(store, rows, ["a", "b"], ("a", "b"))
    replaced = kvstore.Changes.of([("upsert", {"a": 1, "b": 2, "x": 9})], swaps.table.schema)

    def replace() -> None:
        swaps.table.parts.apply({0: replaced}, "w", replaces=True)

    def set_one() -> None:
        swaps.table[(1, 2)] = {"x": 9}

    if write == "replace":
        swaps.assert_one_moment(replace)
        return
    # The place of a value in a key is what counts, whatever the columns are called.
    for nth in range(1, 4):
        swaps.reset()
        with at_reads({nth: swaps.swap}):
            set_one()
        assert swaps.now() == [{"a": 1, "b": 2, "x": 9}, rows[1]]


def undo_of(pair: Swaps) -> kvstore.patch.patch.Undo:
    pair.reset()
    start = {bucket: end for bucket, (_, end) in pair.table.offsets().items()}
    pair.table.upsert([{"k": "a", "v": 7, "w": 8}, {"k": "c", "v": 3, "w": 4}])
    return pair.table.undo(start)


def patch_of(pair: Swaps, changes: kvstore.Changes, renames: dict[int, Callable[[], None]]) -> kvstore.Patch | None:
    """The patch; None if it is refused because columns were renamed."""
    patch = None
    with at_reads(renames), suppress(SchemaMismatch):
        patch = kvstore.Patch.of(pair.table, changes)
    return patch


def test_a_patch_is_made_by_the_names_of_one_moment(pair: Swaps) -> None:
    undo = undo_of(pair)
    reads = reads_of(lambda: kvstore.Patch.of(pair.table, undo))
    before = {row["k"]: row for row in pair.now()}
    made = refused = 0
    for first in range(1, reads + 1):
        for then in (None, first + 1, reads):
            patch = patch_of(pair, undo, {first: pair.swap} | ({} if then is None else {then: pair.swap}))
            if pair.is_swapped:
                pair.swap()
            if patch is None:
                refused += 1
                continue
            made += 1
            rows = {row["before"]["k"]: row for row in patch.rows.to_pylist()}
            assert {key: row["before"] for key, row in rows.items()} == {key: before[key] for key in "ac"}
            assert {key: row["after"] for key, row in rows.items()} == {"a": ROWS[0], "c": None}
    assert made
    assert refused


def test_a_patch_is_applied_by_the_names_that_it_has(pair: Swaps) -> None:
    first, applied = 1, 0
    while True:
        patch = kvstore.Patch.of(pair.table, undo_of(pair))
        kept = pair.now()
        with at_reads({first: pair.swap, first + 1: pair.swap}) as reads, suppress(SchemaMismatch):
            patch.apply(pair.table)
        if pair.is_swapped:
            pair.swap()
        found = pair.now()
        assert found in (ROWS, kept), f"at read {first}"
        applied += found == ROWS
        if reads[0] < first:
            break
        first += 1
    assert applied > 1


def test_a_dataset_goes_on_with_its_columns(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "string", "v": "int64", "w": "string"}, "k")
    table.upsert({"k": "a", "v": 1, "w": "x"})
    datasets = [table.dataset(), table.changes_dataset()]
    store.rename_columns("t", {"v": "w", "w": "v"})
    store.add_columns("t", {"y": "int64"})
    for dataset in datasets:
        rows = dataset.to_table(["k", "v", "w"], filter=pc.field("v") == 1).to_pylist()
        assert rows == [{"k": "a", "v": 1, "w": "x"}]
    assert table.dataset().to_table().to_pylist() == [{"k": "a", "w": 1, "v": "x", "y": None}]


def test_a_query_reads_the_columns_that_it_was_planned_with(store: kvstore.Store) -> None:
    pytest.importorskip("duckdb")
    table = store.create_table("t", {"k": "string", "v": "int64", "w": "string"}, "k")
    table.upsert({"k": "a", "v": 1, "w": "x"})
    query = "SELECT v, w FROM t ORDER BY k"
    reads = reads_of(lambda: store.sql(query).read_all())
    for nth in range(1, reads + 1):
        names = table.schema.names[1:]
        with at_reads({nth: lambda: store.rename_columns("t", {"v": "w", "w": "v"})}):
            (row,) = store.sql(query).read_all().to_pylist()
        assert row in ({"v": 1, "w": "x"}, {"v": "x", "w": 1}), names


def test_the_rows_of_a_wal_image_are_counted_while_a_column_is_renamed(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "string", "v": "int64"}, "k", changelog_image="wal")
    table.upsert([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
    names = ["k", "key"]
    for nth in range(1, reads_of(lambda: len(table)) + 1):
        with at_reads({nth: lambda: store.rename_columns("t", {names[0]: names[1]})}):
            assert len(table) == 2
        names.reverse()


def test_columns_can_be_fixed(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "string", "v": "int64", "w": "string"}, "k", buckets=2)
    table.upsert({"k": "a", "v": 1, "w": "x"})
    fixed, id = table.with_fixed_columns(), table.schema_id
    store.rename_columns("t", {"v": "w", "w": "v"})
    store.add_columns("t", {"y": "int64"})
    table.upsert({"k": "a", "v": "z", "w": 2, "y": 3})
    row = {"k": "a", "v": 2, "w": "z"}
    assert fixed.schema_id == id
    assert fixed["a"] == row
    assert fixed.to_arrow().to_pylist() == [row]
    assert fixed.lookup(["a"]).to_pylist() == [{**row, "_found": True}]
    assert [each["after"] for each in fixed.history("a").to_pylist()] == [{"k": "a", "v": 1, "w": "x"}, row]
    assert pa.concat_batches(fixed.changelog()).select(["v", "w"]).to_pylist()[-1] == {"v": 2, "w": "z"}
    with pytest.raises(SchemaMismatch, match="renamed or dropped since yesterday"):
        table.with_fixed_columns(id, "yesterday; look again")
    store.drop_table("t")
    with pytest.raises(kvstore.errors.NoSuchTable):
        fixed.count()
