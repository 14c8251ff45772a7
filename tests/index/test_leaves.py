"""Rows read from pages equal those of LMDB's cursor: of the same moment, between the same keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.disk import pages
from kvstore.disk.pages import LEAF, tree_of
from kvstore.errors import CorruptData, StoreClosed
from kvstore.index import leaves
from kvstore.index.index import Index, View
from kvstore.index.leaves import Leaves
from kvstore.kernel import library
from kvstore.request.native_rows import rows_found
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.rows.keys import ROW
from tests.conftest import OpenStore
from tests.support.leaves import KEY_BYTES, SCHEMA, STATE, VALUE_BYTES, an_index, put, rows_to

FEWER = settings(max_examples=settings().max_examples * 2 // 5)
PAGE = 4096
Pairs = list[tuple[bytes, bytes]]


def pairs(found: Iterator[tuple[BinaryColumn, BinaryColumn]], *, chunk: int = 1 << 30) -> Pairs:
    listed = [(keys.to_list(), values.to_list()) for keys, values in found]
    assert all(0 < len(keys) == len(values) <= chunk for keys, values in listed)
    return [pair for keys, values in listed for pair in zip(keys, values, strict=True)]


def pairs_of_leaves(view: View, chunk: int, start: bytes = ROW, stop: bytes | None = None) -> Pairs:
    """Pairs from pages, which the kernel and Python find alike."""
    assert view.leaves is not None
    found, expected = (
        pairs(((rows.keys(), rows.values()) for rows in view.leaves.found(chunk, start, stop)), chunk=chunk)
        for _ in both_ways()
    )
    assert found == expected
    return found


def both_ways() -> Iterator[None]:
    """Goes on with the kernel, and then without."""
    yield
    with library.switched_off():
        yield


def assert_same(found: Pairs, expected: Pairs) -> None:
    """Zero words may follow a value."""
    assert [key for key, _ in found] == [key for key, _ in expected]
    for (_, value), (_, stored) in zip(found, expected, strict=True):
        assert value.startswith(stored)
        assert not any(value[len(stored) :])
        assert len(value) == len(stored) or not (len(value) % 8 or len(stored) % 8)


def between(rows: dict[bytes, bytes], start: bytes, stop: bytes | None) -> Pairs:
    return [pair for pair in sorted(rows.items()) if pair[0] >= start and (stop is None or pair[0] < stop)]


@FEWER
@given(st.data())
def test_pages_agree_with_a_dict_between_any_keys(data: st.DataObject) -> None:
    random = Random(data.draw(st.integers(0, 1 << 30)))
    key_bytes = KEY_BYTES[data.draw(st.sampled_from(list(KEY_BYTES)))]
    value_bytes = VALUE_BYTES[data.draw(st.sampled_from(list(VALUE_BYTES)))]
    commits = data.draw(st.lists(st.sampled_from([0, 1, 3, 100, 1500]), max_size=4))
    model: dict[bytes, bytes] = {}
    with an_index() as index:
        for count in commits:
            new = {
                ROW + random.randbytes(random.choice(key_bytes)): random.randbytes(random.choice(value_bytes))
                for _ in range(count)
            }
            put(index, new)
            model |= new
            gone = sorted(random.sample(sorted(model), random.choice((0, len(model) // 3, len(model) // 20))))
            index.put(gone, [b""] * len(gone))
            model = {key: value for key, value in model.items() if key not in set(gone)}
            index.commit(STATE)
        somewhere = st.sampled_from([*sorted(model), ROW]) | st.binary(max_size=3).map(ROW.__add__)
        with index.scan_view() as view:
            for _ in range(4):
                start, stop = data.draw(somewhere), data.draw(st.none() | somewhere)
                chunk = data.draw(st.sampled_from([1, 7, 300, 1 << 15]))
                expected = between(model, start, stop)
                assert_same(pairs_of_leaves(view, chunk, start, stop), expected)
                assert_same(pairs(view.rows(chunk, start, stop), chunk=chunk), expected)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_the_first_rows_and_the_rest_are_all_rows(count: int) -> None:
    rows = {ROW + number.to_bytes(4, "big"): bytes(8) for number in range(count)}
    with an_index() as index:
        put(index, rows)
        index.commit(STATE)
        with index.scan_view() as view:
            for stop in (None, ROW + b"\xff", max(rows, default=ROW)):
                assert_same(pairs(view.rows(1 << 15, ROW, stop)), between(rows, ROW, stop))


def test_a_scan_from_the_middle_reads_no_leaves_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [ROW + b"%06d" % number + b"k" * 400 for number in range(3000)]  # few of them fit into a branch
    plain, leaves_read = os.preadv, [0]

    def counted(descriptor: int, buffers: list[Any], position: int) -> int:
        got = plain(descriptor, buffers, position)
        leaves_read[0] += int.from_bytes(buffers[0][10:12], "little") == LEAF
        return got

    with an_index() as index:
        index.put(keys, [b"value 00"] * len(keys))
        index.commit(STATE)
        monkeypatch.setattr(os, "preadv", counted)
        with index.scan_view() as view, library.switched_off():
            assert view.leaves is not None
            for key in keys[::37]:
                leaves_read[0] = 0
                rows = next(view.leaves.found(1, key, None))  # one leaf at a time
                assert rows.keys()[0] == key
                assert 0 < leaves_read[0] <= 3


def test_a_scan_sees_one_moment_while_others_commit() -> None:
    random = Random(1)
    rows = {ROW + number.to_bytes(4, "big"): random.randbytes(random.choice((40, 48, 6000))) for number in range(2000)}
    with an_index() as index:
        put(index, rows)
        index.commit(STATE)
        with index.scan_view() as view:
            assert view.leaves is not None
            reading = view.rows(200)
            found = pairs(iter([next(reading)]))
            for _ in range(10):
                put(index, dict.fromkeys(rows, random.randbytes(48)))
                gone = sorted(random.sample(list(rows), 500))
                index.put(gone, [b""] * len(gone))
                index.commit(STATE)
            assert_same(found + pairs(reading), sorted(rows.items()))


def test_a_tree_is_known_until_the_next_commit() -> None:
    with an_index() as index:
        for _ in range(4):
            with index.environment.read() as transaction, index.environment.file() as descriptor:
                assert descriptor is not None
                found = tree_of(descriptor, transaction.id())
                assert found is not None
                assert found[1].counts[3] == transaction.stat()["entries"]
                for _ in range(3):
                    put(index, {ROW + os.urandom(8): bytes(8)})
                    index.commit(STATE)
                    assert tree_of(descriptor, transaction.id()) is None


def test_an_unknown_tree_is_read_by_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {ROW + number.to_bytes(4, "big"): bytes(8) for number in range(1000)}
    with an_index() as index:
        put(index, rows)
        index.commit(STATE)
        monkeypatch.setattr("kvstore.index.index.tree_of", lambda *_: None)
        with index.scan_view() as view:
            assert_same(pairs(view.rows(300), chunk=300), sorted(rows.items()))


def test_a_replaced_file_is_read_by_the_cursor(tmp_path: Path) -> None:
    rows = {ROW + number.to_bytes(4, "big"): bytes(8) for number in range(1000)}
    place = tmp_path / "index"
    with an_index(place) as index:
        put(index, rows)
        index.commit(STATE)
        for make in (lambda: place.mkdir(), lambda: (place / "data.mdb").write_bytes(b"other")):
            if place.exists() and not (tmp_path / "old").exists():
                place.rename(tmp_path / "old")
            make()
            with index.scan_view() as view:
                assert_same(pairs(view.rows(300)), sorted(rows.items()))


def test_large_values_come_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {ROW + number.to_bytes(4, "big"): os.urandom(10_000 if number % 3 else 48) for number in range(300)}
    monkeypatch.setattr(leaves, "CHUNK_BYTES", 1 << 16)
    with an_index() as index:
        put(index, rows)
        index.commit(STATE)
        with index.scan_view() as view:
            assert view.leaves is not None
            for _ in both_ways():
                chunks = [(found.keys(), found.values()) for found in view.leaves.found(1 << 15, ROW, None)]
                assert max(int(values.lengths.sum()) for _, values in chunks) <= 1 << 16
                assert_same(pairs(iter(chunks)), sorted(rows.items()))


def test_a_large_value_that_becomes_shorter_before_the_commit_is_read() -> None:
    """LMDB then leaves the value all the pages that it had."""
    with an_index() as index:
        put(index, {ROW + b"a": b"x" * 30_000})
        put(index, {ROW + b"a": b"y" * 9_000})
        index.commit(STATE)
        with index.scan_view() as view:
            assert pairs_of_leaves(view, 10) == [(ROW + b"a", b"y" * 9_000)]


def test_a_scan_of_a_closed_store_raises_store_closed(open_store: OpenStore) -> None:
    store = open_store()
    table = store.create_table("t", SCHEMA, "k")
    table.upsert(rows_to(100_000))
    reader = table.scan()
    reader.read_next_batch()
    store.close()
    with pytest.raises(StoreClosed):
        reader.read_all()


def test_pages_are_not_trusted_after_the_transaction_ends() -> None:
    with an_index() as index:
        put(index, {ROW + number.to_bytes(4, "big"): bytes(8) for number in range(1000)})
        index.commit(STATE)
        with pytest.raises(StoreClosed), index.scan_view() as view:
            closed_meanwhile(index, view)


def closed_meanwhile(index: Index, view: View) -> None:
    assert view.leaves is not None
    index.environment.close()
    list(view.leaves.found(300, ROW, None))


def test_a_row_whose_size_becomes_zero_is_damage(open_store: OpenStore) -> None:
    """One bit of a size of 16 bytes. LMDB, which finds single keys and reads a scan's first rows, does not notice."""
    store = open_store()
    table = store.create_table("t", {"k": "int64", "a": "int64"}, primary_key="k")
    table.upsert([{"k": n, "a": n} for n in range(100)])
    table.flush()
    key = ROW + (50 + (1 << 63)).to_bytes(8, "big")
    with (store.path / "tables/1/0/index/data.mdb").open("r+b") as file:
        file.seek(file.read().rindex(key) - pages.NODE.size)
        file.write(bytes(4))
    for _ in both_ways():
        for read in (lambda: table.scan().read_all(), lambda: table.lookup([50]), lambda: table.lookup([*range(100)])):
            with pytest.raises(CorruptData, match="kvstore check"):
                read()


class Damaged:
    """A copy of an index's file with some changes, and its rows as a scan returns them."""

    def __init__(self, store: kvstore.Store, table: kvstore.Table, work: Path) -> None:
        source = store.path / "tables/1/0/index/data.mdb"
        self.data = source.read_bytes()
        self._layout = layout_of(store.runtime.definition(table.name))
        self._descriptor = os.open(work, os.O_RDWR | os.O_CREAT)
        os.write(self._descriptor, self.data)
        found = max((tree_of(self._descriptor, number) for number in range(2, 9)), key=lambda each: each is not None)
        assert found is not None
        self.tree = found[1]
        self.used, self.large = used_pages(self.data, self.tree.root)
        self.true = self.read()
        assert self.true.num_rows == table.count()
        self._keys = self._layout.encode_keys(self.true.combine_chunks().to_batches()[0])
        self.ranges = [self.range(30, 31), self.range(100, 380)]

    def range(self, first: int, last: int) -> tuple[bytes, bytes, pa.Table]:
        """Keys of rows by index, and the rows from one to the other."""
        return self._keys[first], self._keys[last], self.true.slice(first, last - first)

    def reader(self) -> Leaves:
        return Leaves(self._descriptor, PAGE, self.tree, lambda: None)

    def read(self, start: bytes = ROW, stop: bytes | None = None) -> pa.Table:
        """The rows, or the damage, which the kernel and Python find alike."""
        reader = self.reader()
        read: list[pa.Table | CorruptData] = []
        for _ in both_ways():
            try:
                found = (rows_found(self._layout, rows) for rows in reader.found(100, start, stop))
                read.append(pa.Table.from_batches(found, SCHEMA))
            except CorruptData as error:
                read.append(error)
        native, plain = read
        if isinstance(plain, CorruptData):
            assert isinstance(native, CorruptData)
            assert str(native) == str(plain)
            raise plain
        assert isinstance(native, pa.Table)
        assert native.equals(plain)
        return plain

    def verdict(self, place: int, changed: bytes) -> str:
        os.pwrite(self._descriptor, changed, place)
        try:
            right = self.read().equals(self.true)
            for start, stop, rows in self.ranges:
                right &= self.read(start, stop).equals(rows)
            return "harmless" if right else "silent"
        except CorruptData:
            return "detected"
        finally:
            os.pwrite(self._descriptor, self.data[place : place + len(changed)], place)


@pytest.fixture
def damaged(open_store: OpenStore, tmp_path: Path) -> Damaged:
    """A file of a tree with branches, leaves and values with their own pages."""
    store = open_store()
    table = store.create_table("t", SCHEMA, "k")
    wide = [{"k": 1000 + n, "a": n, "s": "x" * (5000 * n)} for n in range(1, 4)]
    table.upsert(rows_to(400))
    table.upsert(wide)
    table.flush()
    return Damaged(store, table, tmp_path / "damaged")


def used_pages(data: bytes, root: int) -> tuple[dict[int, list[int]], list[int]]:
    """Numbers of the tree's pages by kind; and the positions of the page numbers of values with their own pages."""
    found: dict[int, list[int]] = {pages.BRANCH: [], pages.LEAF: [], pages.OVERFLOW: []}
    large = []
    waiting = [root]
    while waiting:
        number = waiting.pop()
        _, _, kind, lower, _ = pages.HEAD.unpack_from(data, number * PAGE)
        found[kind].append(number)
        for at in range(number * PAGE + 16, number * PAGE + lower, 2) if kind != pages.OVERFLOW else ():
            node = number * PAGE + int.from_bytes(data[at : at + 2], "little")
            low, high, flags, key_bytes = pages.NODE.unpack_from(data, node)
            if kind == pages.BRANCH:
                waiting.append(low | high << 16 | flags << 32)
            elif flags == pages.BIG:
                large.append(node + 8 + key_bytes)
                waiting.append(int.from_bytes(data[large[-1] :][:8], "little"))
    return found, large


def test_every_structural_bit_of_pages_is_detected_or_harmless(damaged: Damaged) -> None:
    """Heads, pointers, heads of nodes and keys: everything that locates and identifies rows."""
    verdicts = {"detected": 0, "harmless": 0, "silent": 0}
    random = Random(3)
    for kind, numbers in damaged.used.items():
        assert numbers
        for number in numbers:
            start = number * PAGE
            _, _, _, lower, upper = pages.HEAD.unpack_from(damaged.data, start)
            structure = range(start, start + (16 if kind == pages.OVERFLOW else lower))
            inside = range(start + (16 if kind == pages.OVERFLOW else upper), start + PAGE)
            for place in {*random.sample(structure, min(12, len(structure))), *random.sample(inside, 12)}:
                changed = bytes([damaged.data[place] ^ 1 << random.randrange(8)])
                verdicts[damaged.verdict(place, changed)] += 1
    assert not verdicts["silent"]
    assert verdicts["detected"] > verdicts["harmless"]


def test_every_bit_of_a_pages_head_is_detected(damaged: Damaged) -> None:
    """Its number, kind, and where pointers end and nodes begin; else a page could be another, or have fewer rows.

    A value may have more pages than it needs.
    """
    for kind, numbers in damaged.used.items():
        for bit in (*range(64), *range(80, 128)):
            place = numbers[-1] * PAGE + bit // 8
            verdict = damaged.verdict(place, bytes([damaged.data[place] ^ 1 << bit % 8]))
            grew = kind == pages.OVERFLOW and bit >= 96 and not damaged.data[place] >> bit % 8 & 1
            assert verdict == ("harmless" if grew else "detected")


def test_every_bit_of_a_large_values_position_is_detected(damaged: Damaged) -> None:
    place = damaged.large[-1]
    for bit in range(64):
        changed = int.from_bytes(damaged.data[place : place + 8], "little") ^ 1 << bit
        assert damaged.verdict(place, changed.to_bytes(8, "little")) == "detected"


def test_any_bytes_in_place_of_a_page_are_detected_or_harmless(damaged: Damaged) -> None:
    random = Random(4)
    makers: list[Callable[[int], bytes]] = [
        lambda _: bytes(PAGE),
        lambda _: b"\xff" * PAGE,
        lambda _: random.randbytes(PAGE),
        lambda number: damaged.data[number * PAGE :][:16] + random.randbytes(PAGE - 16),
        lambda number: damaged.data[number * PAGE :][:16] + b"\xff" * (PAGE - 16),
        lambda number: damaged.data[(number + 1) * PAGE :][:PAGE] or bytes(PAGE),
    ]
    verdicts = {
        damaged.verdict(number * PAGE, make(number))
        for numbers in damaged.used.values()
        for number in numbers
        for make in makers
    }
    assert "detected" in verdicts
    assert "silent" not in verdicts


def test_every_bit_of_branch_keys_is_detected_or_harmless(damaged: Damaged) -> None:
    """Keys of branches have no checksum; ranges begin and end right next to them."""
    number = damaged.used[pages.BRANCH][0]
    lower = pages.HEAD.unpack_from(damaged.data, number * PAGE)[3]
    for at in range(number * PAGE + 18, number * PAGE + lower, 2):
        key = number * PAGE + int.from_bytes(damaged.data[at : at + 2], "little") + 8
        row = int.from_bytes(damaged.data[key + 1 : key + 9], "big") - (1 << 63)
        damaged.ranges = [damaged.range(row + by, 400) for by in (-1, 0, 1)] + [damaged.range(0, row)]
        for bit in range(at % 4 // 2, 72, 2):
            changed = bytes([damaged.data[key + bit // 8] ^ 1 << bit % 8])
            assert damaged.verdict(key + bit // 8, changed) != "silent"


def test_a_duplicated_row_is_detected(damaged: Damaged) -> None:
    """LMDB's cursor would return it: only the order reveals it, since row and page are valid."""
    number = damaged.used[pages.LEAF][-1]
    start = number * PAGE
    first, second = damaged.data[start + 16 : start + 18], damaged.data[start + 18 : start + 20]
    assert damaged.verdict(start + 16, second + first) == "detected"
    assert damaged.verdict(start + 16, second) == "detected"


def test_a_truncated_file_is_detected(damaged: Damaged) -> None:
    last = max(number for numbers in damaged.used.values() for number in numbers)
    os.truncate(damaged._descriptor, (last + 1) * PAGE - 1)
    with pytest.raises(CorruptData):
        damaged.read()


def test_a_file_that_is_truncated_during_a_scan_is_detected(damaged: Damaged) -> None:
    for _ in both_ways():
        reading = damaged.reader().found(100, ROW, None)
        next(reading)
        os.truncate(damaged._descriptor, 3 * PAGE)
        with pytest.raises(CorruptData, match="beyond the end of the file"):
            list(reading)
        os.pwrite(damaged._descriptor, damaged.data, 0)


def test_swapped_pages_are_detected(damaged: Damaged) -> None:
    """With their numbers, so that each page by itself is valid."""
    one, other = sorted(damaged.used[pages.LEAF])[:2]
    branch = damaged.used[pages.BRANCH][0] * PAGE
    changed = bytearray(damaged.data[branch : branch + PAGE])
    for at in range(16, pages.HEAD.unpack_from(changed)[3], 2):
        node = int.from_bytes(changed[at : at + 2], "little")
        child = int.from_bytes(changed[node : node + 4], "little")
        changed[node : node + 4] = {one: other, other: one}.get(child, child).to_bytes(4, "little")
    assert damaged.verdict(branch, bytes(changed)) == "detected"
