"""Old values that say other sizes than they have are not believed, and nothing beyond them is read."""

from __future__ import annotations

import struct
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.kernel import library, writes
from kvstore.meta.state import TableDefinition
from kvstore.request.grouping import grouped
from kvstore.request.row_layout import TableLayout
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import TableOptions
from logformat.checksum import hasher
from logformat.ids import SchemaId, TableId
from logformat.log.change import ChangeType
from tests.kernel.guarded import guarded

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), False),
        pa.field("a", pa.string()),
        pa.field("f", pa.bool_()),
        pa.field("b", pa.binary()),
    ]
)
LAYOUT = TableLayout(TableDefinition(TableId(1), "t", {SchemaId(1): SCHEMA}, ("k",), 1, TableOptions()))
ROWS = pa.RecordBatch.from_pylist([{"k": nth, "a": "a" * nth, "f": True, "b": b"b" * nth} for nth in range(20)], SCHEMA)


def sealed(key: bytes, value: bytes) -> bytes:
    """The value with the checksum that it would have."""
    if len(value) < 8 or len(value) % 8:
        return value
    hash, _ = hasher(len(key), len(value))(key, bytes(4) + value[4:])
    return struct.pack("<I", hash & 0xFFFFFFFF) + value[4:]


@given(st.integers(0, 1 << 30), st.booleans())
def test_damaged_values_are_left_to_python(seed: int, seals: bool) -> None:
    kernel, table, random = library.kernel(), LAYOUT.flat, Random(seed)
    if kernel is None:
        return
    assert table is not None
    grouping = grouped(LAYOUT, ROWS)
    keys = grouping.keys.to_list()
    made = writes.encode(kernel, table, ROWS, ROWS.nbytes, grouping.order[grouping.lasts], grouping.keys)
    assert made is not None
    values, _, sums = made
    old = values.to_list()
    place = random.choice([0, len(old) - 1, random.randrange(len(old))])
    damaged = bytearray(old[place])
    # What says how long the rest is: the sizes of the two texts, after checksum, schema id and null bitmap.
    at = random.choice([4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    damaged[at] ^= 1 << random.randrange(8)
    given = bytes(damaged[: random.choice([len(damaged), len(damaged) - 8, 8, 4])])
    old[place] = sealed(keys[place], given) if seals else given
    lengths = np.fromiter(map(len, old), np.int64, len(old))
    batch = writes.Batch(
        *(ROWS, grouping.order, grouping.starts, grouping.lasts, np.zeros(len(keys), bool)),
        *(guarded(b"".join(old)), lengths, sums),
    )
    found = writes.Records(kernel, table, batch, preimages=True, inserts=True)
    assert found.count == 0 or seals
    if found.count:
        found.rows().validate()


def test_places_that_do_not_lie_together_are_kept_until_the_kernel_has_read_them() -> None:
    """A copy whose memory was given back would have other numbers."""
    kernel, table = library.kernel(), LAYOUT.flat
    if kernel is None:
        return
    assert table is not None
    rows = ROWS.take(pa.array(np.arange(1_000) % len(ROWS)))
    keys = BinaryColumn(np.zeros(9_000, np.uint8), np.repeat(np.arange(1_001) * 9, 2)[::2])
    places = np.repeat(np.arange(1_000), 2)
    apart, together = (
        writes.encode(kernel, table, rows, rows.nbytes, each, keys) for each in (places[::2], places[::2].copy())
    )
    assert apart is not None
    assert together is not None
    assert apart[0].to_list() == together[0].to_list()


def test_operations_of_no_key_are_inserts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read at what memory happened to hold."""
    kernel, table = library.kernel(), LAYOUT.flat
    if kernel is None:
        return
    assert table is not None
    order, one = np.arange(len(ROWS)), np.zeros(1, np.int64)
    monkeypatch.setattr(np, "empty", lambda count, kind: np.full(count, -(1 << 40), kind))
    batch = writes.Batch(ROWS, order, one, one, np.zeros(len(ROWS), bool), np.zeros(0, np.uint8), one, one)
    found = writes.Records(kernel, table, batch, preimages=True, inserts=True)
    assert found.types.tolist() == [ChangeType.INSERT] * len(ROWS)
    assert found.rows().equals(ROWS)


def test_rows_that_change_meanwhile_are_not_written_beyond_their_place() -> None:
    """Who submits rows could write to their memory before it is their turn."""
    kernel, table = library.kernel(), LAYOUT.flat
    if kernel is None:
        return
    assert table is not None
    ends, is_there = np.arange(len(ROWS) + 1, dtype=np.int32), np.zeros(8, np.uint8)
    text = pa.Array.from_buffers(pa.string(), len(ROWS), [None, pa.py_buffer(ends), pa.py_buffer(b"a" * 20_000)])
    raw = [pa.py_buffer(each) for each in (is_there, ends, b"b" * 20_000)]
    columns = [ROWS["k"], text, ROWS["f"], pa.Array.from_buffers(pa.binary(), len(ROWS), raw)]
    rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    of_keys, none = np.arange(len(ROWS)), np.zeros(len(ROWS), np.int64)
    batch = writes.Batch(rows, *[of_keys] * 3, none.view(bool)[:20], np.zeros(0, np.uint8), none, none)
    found = writes.Records(kernel, table, batch, preimages=True, inserts=True)
    ends *= 1_000
    is_there[:] = 255
    body = guarded(bytes(found.body_bytes))
    found.fill(body)
    assert found.body_bytes < 2_000


def test_texts_that_end_before_they_begin_are_left_to_python() -> None:
    kernel, table = library.kernel(), LAYOUT.flat
    if kernel is None:
        return
    assert table is not None
    ends = pa.py_buffer(np.array([0, 20, 0, 20, 20], np.int32))
    text = pa.Array.from_buffers(pa.string(), 4, [None, ends, pa.py_buffer(b"a" * 20)])
    some = ROWS.slice(0, 4)
    rows = pa.RecordBatch.from_arrays([some["k"], text, some["f"], some["b"]], schema=SCHEMA)
    keys = grouped(LAYOUT, ROWS.slice(0, 4)).keys
    assert writes.encode(kernel, table, rows, 1_000, np.arange(4), keys) is None
