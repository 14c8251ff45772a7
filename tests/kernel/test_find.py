"""Keys found in pages by the native kernel are those that LMDB finds, and damage is reported; nothing else is read.

Where there is no kernel, because there is no C compiler, LMDB finds them all.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.disk import environment
from kvstore.disk.pages import HEAD, last_commit
from kvstore.errors import CorruptData, StoreClosed
from kvstore.index import mapped
from kvstore.index.index import Index, View
from kvstore.kernel import library
from logformat.binary_column import BinaryColumn
from logformat.rows.keys import ROW
from tests.conftest import OpenStore
from tests.kernel.both import assert_both_agree, found_by_kernel, lookups_both_ways
from tests.kernel.guarded import guarded
from tests.kernel.reference import tree_file
from tests.support.leaves import KEY_BYTES, STATE, VALUE_BYTES, an_index, put, rows_to

FEWER = settings(max_examples=settings().max_examples * 2 // 5)
FLIPS = 2_000


def found_in(index: Index, keys: list[bytes]) -> list[bytes | None]:
    with index.view() as view:
        there, values = view.find(BinaryColumn.from_list(keys))
        few = view.get(keys)
    strings = iter(values.to_list())
    found = [next(strings) if its_there else None for its_there in there]
    assert few == [value or b"" for value in found]
    return found


def used(counts: list[int]) -> bool:
    """Whether the kernel was used, where there is one."""
    return bool(counts) or library.kernel() is None


@FEWER
@given(st.data())
def test_the_kernel_agrees_with_a_dict_and_with_lmdb(data: st.DataObject) -> None:
    random = Random(data.draw(st.integers(0, 1 << 30)))
    key_bytes = KEY_BYTES[data.draw(st.sampled_from(list(KEY_BYTES)))]
    value_bytes = VALUE_BYTES[data.draw(st.sampled_from(list(VALUE_BYTES)))]
    model: dict[bytes, bytes] = {}
    with lookups_both_ways() as counts, an_index() as index:
        for count in data.draw(st.lists(st.sampled_from([0, 1, 3, 100, 1500]), max_size=4)):
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
            near = [key[:-1] + bytes([key[-1] ^ 1]) for key in new] + [key[:-1] for key in new]
            others = [ROW + random.randbytes(random.choice(key_bytes)) for _ in range(30)]
            keys = [*new, *gone, *near, *others, ROW, ROW + b"\xff" * 510, b"\0", b"\xff"]
            random.shuffle(keys)
            in_order = sorted([*keys, *random.choices(keys, k=len(keys) // 9)])
            for some in (keys, in_order, in_order[::7], sorted(new), sorted(model), [*in_order[9:], *keys]):
                assert found_in(index, some) == [model.get(key, index.environment.get(key)) for key in some]
            assert used(counts)


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 49])
def test_any_number_of_keys_is_found(count: int) -> None:
    rows = {ROW + number.to_bytes(2, "big"): bytes([number] * 8) for number in range(1, 200)}
    with lookups_both_ways() as counts, an_index() as index:
        put(index, rows)
        index.commit(STATE)
        keys = list(rows)[::4][:count]
        assert found_in(index, keys) == [rows[key] for key in keys]
        assert used(counts)


def test_a_large_value_that_becomes_shorter_before_the_commit_is_found() -> None:
    with lookups_both_ways() as counts, an_index() as index:
        for value in (b"x" * 30_000, b"y" * 9_000):
            put(index, {ROW + b"a": value})
        index.commit(STATE)
        assert found_in(index, [ROW + b"a"]) == [b"y" * 9_000]
        assert used(counts)


def test_rows_of_later_commits_are_found_although_the_file_grows() -> None:
    with lookups_both_ways() as counts, an_index() as index:
        for first in range(0, 20_000, 4_000):
            rows = {ROW + number.to_bytes(4, "big"): bytes(40) for number in range(first, first + 4_000)}
            put(index, rows)
            index.commit(STATE)
            assert found_in(index, list(rows)) == list(rows.values())
        assert counts == [4_000] * 5 or library.kernel() is None


def test_a_view_finds_what_was_there_when_it_began() -> None:
    """After two more commits its tree is only known to LMDB."""
    rows = {ROW + number.to_bytes(2, "big"): bytes(8) for number in range(500)}
    with lookups_both_ways(), an_index() as index:
        put(index, rows)
        index.commit(STATE)
        keys = BinaryColumn.from_list(list(rows))
        with index.view() as view:
            for number in range(6):
                there, values = view.find(keys)
                assert there.all()
                assert values.to_list() == list(rows.values())
                put(index, dict.fromkeys(rows, bytes([number]) * 16))
                index.commit(STATE)


def test_a_process_with_little_address_space_has_no_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "is_limited", lambda: True)
    rows = {ROW + number.to_bytes(2, "big"): bytes(8) for number in range(100)}
    with lookups_both_ways() as counts, an_index() as index:
        put(index, rows)
        index.commit(STATE)
        assert found_in(index, list(rows)) == list(rows.values())
        assert counts == []


def test_a_process_without_a_spare_descriptor_has_no_map(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    rows = {ROW + number.to_bytes(2, "big"): bytes(8) for number in range(100)}
    with lookups_both_ways() as counts, an_index() as index:
        put(index, rows)
        index.commit(STATE)
        monkeypatch.setattr(environment, "open_file", refuse)
        assert found_in(index, list(rows)) == list(rows.values())
        assert counts == []
        monkeypatch.undo()


def test_a_replaced_file_is_not_read(tmp_path: Path) -> None:
    rows = {ROW + number.to_bytes(2, "big"): bytes(8) for number in range(100)}
    place = tmp_path / "index"
    with lookups_both_ways() as counts, an_index(place) as index:
        put(index, rows)
        index.commit(STATE)
        place.rename(tmp_path / "old")
        place.mkdir()
        (place / "data.mdb").write_bytes(b"other")
        assert found_in(index, list(rows)) == list(rows.values())
        assert counts == []


@pytest.mark.parametrize("ask", [lambda view, keys: view.find(BinaryColumn.from_list(keys)), View.get])
def test_what_is_found_is_not_believed_after_the_transaction_ended(ask: Callable[..., object]) -> None:
    rows = {ROW + number.to_bytes(2, "big"): bytes(8) for number in range(100)}
    with an_index() as index:
        put(index, rows)
        index.commit(STATE)
        with pytest.raises(StoreClosed), index.view() as view:
            closed_meanwhile(index, view, ask, list(rows))


def closed_meanwhile(index: Index, view: View, ask: Callable[..., object], keys: list[bytes]) -> None:
    index.environment.close()
    ask(view, keys)


def test_beside_a_writer_each_view_finds_one_commit() -> None:
    keys = [ROW + number.to_bytes(4, "big") for number in range(2_000)]
    failures = list[BaseException]()
    with lookups_both_ways() as counts, an_index() as index:

        def write() -> None:
            try:
                for number in range(1, 60):
                    put(index, dict.fromkeys(keys, number.to_bytes(8 * (1 + number % 5), "big")))
                    index.commit(STATE)
            except BaseException as error:
                failures.append(error)

        put(index, dict.fromkeys(keys, bytes(8)))
        index.commit(STATE)
        assert len(set(found_in(index, keys))) == 1
        writer = threading.Thread(target=write)
        writer.start()
        while writer.is_alive():
            assert len(set(found_in(index, keys))) == 1
        assert not failures
        assert used(counts)


def test_a_damaged_page_is_reported_by_lookup(open_store: OpenStore) -> None:
    store = open_store()
    table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False), ("a", pa.int32())]), "k")
    table.upsert(pa.table({"k": np.arange(5_000), "a": np.arange(5_000, dtype=np.int32)}))
    table.flush()
    path = store.path / "tables/1/0/index/data.mdb"
    data = path.read_bytes()
    leaves = [at for at in range(0, len(data), 4096) if data[at + 10 : at + 12] == b"\2\0"]
    with path.open("r+b") as file:
        file.seek(leaves[len(leaves) // 2] + 14)
        file.write(b"\xff\xff")
    if library.kernel() is not None:  # LMDB alone may end the process
        with pytest.raises(CorruptData, match="A page of an index is damaged"):
            table.lookup(pa.array(range(5_000)))
    path.write_bytes(data)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int, list[bytes]]:
    """A file that LMDB wrote, its last commit, and keys that are there or not."""
    random = Random(5)
    sizes = (8, *[48] * 40, 400, 9_000)
    rows = {ROW + random.randbytes(random.choice((4, 8, 8, 20))): bytes(random.choice(sizes)) for _ in range(600)}
    directory = tmp_path_factory.mktemp("real")
    with an_index(directory) as index:
        put(index, rows)
        index.commit(STATE)
        with (directory / "data.mdb").open("rb") as file:
            commit = last_commit(file.fileno())
            assert commit is not None
            keys = random.sample(sorted(rows), 60) + [ROW + random.randbytes(8) for _ in range(20)]
            return file.read(), commit, keys


def test_flipped_bits_of_a_small_tree_give_what_the_reference_gives() -> None:
    """One of each byte, and every one of the heads of pages."""
    rows = {ROW + bytes([number]) * (1 + number % 12): bytes(8 + 8 * (number % 3)) for number in range(1, 15)}
    rows[ROW + b"big"] = bytes(700)
    data = bytearray(tree_file(rows, page_bytes=256))
    keys = [*list(rows)[::4], ROW + b"big", ROW + b"\x05\x06", b"\0"]
    place = guarded(bytes(data))
    verdicts = set[bool]()
    for at in range(len(data)):
        for bit in range(8) if at % 256 < HEAD.size else [at % 8]:
            data[at] ^= 1 << bit
            place[at] = data[at]
            verdicts.add(assert_both_agree(bytes(data), [place], 2, keys))
            data[at] ^= 1 << bit
            place[at] = data[at]
    assert verdicts == {True, False}


def flipped(real: tuple[bytes, int, list[bytes]], seed: int, count: int) -> None:
    data, commit, keys = bytearray(real[0]), *real[1:]
    place = guarded(real[0])
    random, verdicts = Random(seed), set[bool]()
    for _ in range(count):
        at = random.randrange(len(data) // 4096) * 4096 + random.choice((random.randrange(4096), random.randrange(160)))
        data[at] ^= 1 << random.randrange(8)
        place[at] = data[at]
        verdicts.add(assert_both_agree(bytes(data), [place], commit, random.sample(keys, 10)))
        data[at] = place[at] = real[0][at]
    assert verdicts == {True, False}


def test_flipped_bits_of_a_real_file_give_what_the_reference_gives(real: tuple[bytes, int, list[bytes]]) -> None:
    flipped(real, 3, FLIPS // 10)


def test_keys_in_order_are_looked_for_within_a_file_with_flipped_bits(real: tuple[bytes, int, list[bytes]]) -> None:
    """In a damaged leaf they may be missed, as they may one by one, but in another way."""
    if library.kernel() is None:
        pytest.skip("LMDB alone may end the process")
    data, commit, keys = real[0], real[1], sorted(real[2])
    place, random = guarded(data), Random(7)
    for _ in range(FLIPS):
        at = random.randrange(len(data) // 4096) * 4096 + random.choice((random.randrange(4096), random.randrange(160)))
        place[at] ^= 1 << random.randrange(8)
        found_by_kernel(place, commit, keys)
        place[at] = data[at]
    assert found_by_kernel(place, commit, keys) == [found_by_kernel(place, commit, [key])[0] for key in keys]  # type: ignore[index]


@pytest.mark.long
def test_many_flipped_bits_of_a_real_file_give_what_the_reference_gives(
    real: tuple[bytes, int, list[bytes]],
) -> None:
    flipped(real, Random().randrange(1 << 30), 10 * FLIPS)


def test_a_cut_file_gives_what_the_reference_gives(real: tuple[bytes, int, list[bytes]]) -> None:
    data, commit, keys = real
    for pages in range(len(data) // 4096):
        for size in (pages * 4096, pages * 4096 + 64):
            assert_both_agree(data[:size], [guarded(data[:size])], commit, keys[:8])


def test_another_commit_is_refused(real: tuple[bytes, int, list[bytes]]) -> None:
    data, commit, keys = real
    for number in range(commit + 4):
        assert assert_both_agree(data, [guarded(data)], number, keys[:3]) == (number == commit)


def test_lookup_and_kvstore_agree_after_a_reopening(open_store: OpenStore, tmp_path: Path) -> None:
    with lookups_both_ways() as counts:
        store = open_store()
        schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("a", pa.int32()), pa.field("s", pa.string())])
        table = store.create_table("t", schema, "k", buckets=3)
        table.upsert(rows_to(900))
        table.flush()
        for _ in range(2):
            keys = [*range(890, 910), 5, 5, -1]
            found = table.lookup(keys).to_pylist()
            assert [row["_found"] for row in found] == [0 <= key < 900 for key in keys]
            assert [row["a"] for row in found] == [key % 1000 if 0 <= key < 900 else None for key in keys]
            store.close()
            store = kvstore.open(store.path)
            table = store.table("t")
        store.close()
        assert used(counts)
