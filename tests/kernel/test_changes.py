"""Change records that the kernel makes: what it is given is held against its size, and nothing else is written.

``tests/fuzz/write_targets.py`` compares the records with those of Python.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.kernel import library, writes
from kvstore.kernel.changes import Made, Stored
from kvstore.kernel.writes import FEW_MAX, Encoded, Few
from kvstore.meta.state import TableDefinition
from kvstore.request.encoded import EncodedWrites
from kvstore.request.row_layout import grouped, layout_of
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import TableOptions
from logformat.checksum import hasher
from logformat.ids import Offset, SchemaId, TableId
from logformat.log.batch import BatchHeader
from logformat.log.few_records import finished, packed
from tests.fuzz.write_targets import guarded_maker

SCHEMA = pa.schema(
    [
        pa.field("a", pa.string()),
        pa.field("k", pa.string(), False),
        pa.field("f", pa.bool_()),
        pa.field("b", pa.binary()),
    ]
)
HEADER = BatchHeader(base_offset=Offset(7), commit_timestamp=1 << 40, schema_id=SchemaId(1))
DEFINITION = TableDefinition(TableId(1), "t", {SchemaId(1): SCHEMA}, ("k",), 1, TableOptions())
WRITES = EncodedWrites(DEFINITION, ("k",), has_kernel=False)
ROWS = pa.RecordBatch.from_pylist(
    [{"k": f"{nth}\0", "a": "a" * nth, "f": nth % 3 == 0, "b": b"b" * nth} for nth in range(20)], SCHEMA
)


def few(count: int) -> Few:
    """Some rows as they are stored."""
    rows = [{"k": f"{nth}\0", "a": "a" * nth, "f": nth % 3 == 0, "b": None} for nth in range(count)]
    operations = [each for row in rows if (each := WRITES.rows.upsert(row))]
    return Few([each.code for each in operations], [each.value or b"" for each in operations], SchemaId(1))


def encoded(count: int) -> Encoded:
    names, values, _ = few(count)
    each = np.arange(count)
    keys, column = BinaryColumn.from_list(names), BinaryColumn.from_list(values)
    return Encoded(keys, each, each, each, column, SchemaId(1))


def stored(values: list[bytes]) -> Stored:
    column = BinaryColumn.from_list(values)
    return Stored(column.lengths, column)


def made(rows: Encoded, old: Stored, **changed: int) -> Made | None:
    """What the kernel makes, in memory of which it may not leave a byte, with some of its numbers changed."""
    maker = guarded_maker(DEFINITION, changed)
    assert maker is not None
    return maker.make(rows, old)


needs_kernel = pytest.mark.skipif(library.kernel() is None, reason="there is no native kernel")


@needs_kernel
@pytest.mark.parametrize("count", [1, 2, 257, 1000])
def test_rows_that_take_the_place_of_themselves_change_no_figure(count: int) -> None:
    rows = encoded(count)
    found = made(rows, stored(rows.values.to_list()))
    assert found is not None
    assert (found.records, found.added_rows, found.digest) == (2 * count, 0, 0)
    assert list(found.final) == list(range(count))
    if count <= FEW_MAX:
        maker = guarded_maker(DEFINITION)
        assert maker is not None
        again = maker.make_few(few(count), few(count).values, packed(HEADER))
        assert again is not None
        assert again.batch == finished(memoryview(bytearray(found.batch)), HEADER, found.records)
        assert again.final == tuple(found.final)


@needs_kernel
@pytest.mark.parametrize(
    "name", ["operations", "keys", "key_bytes", "value_bytes", "old_bytes", "room", "scratch_bytes"]
)
@given(less=st.integers(1, 6000))
def test_nothing_is_read_or_written_elsewhere_whatever_the_sizes_say(name: str, less: int) -> None:
    rows = encoded(8)
    old = stored(rows.values.to_list())
    found, whole = made(rows, old, **{name: -less}), made(rows, old)
    assert whole is not None
    # There is more room than these rows need.
    assert found is None or (name in {"room", "scratch_bytes"} and found.batch == whole.batch)


@needs_kernel
@pytest.mark.parametrize("name", ["order", "starts", "lasts", "key_ends", "ends", "old_sizes"])
@given(seed=st.integers(0, 1 << 30))
def test_numbers_that_are_not_right_are_left_to_python(name: str, seed: int) -> None:
    """Each operation belongs to one key, and each string lies within the bytes at hand."""
    random, rows = Random(seed), encoded(8)
    old = stored(rows.values.to_list())
    numbers = {"key_ends": rows.keys.offsets, "ends": rows.values.offsets, "old_sizes": old.lengths}
    array = numbers[name] if name in numbers else getattr(rows, name)
    changed = array.copy()
    changed[random.randrange(len(rows.keys))] += random.choice([-(1 << 40), -9, -1, 1, 9, 1 << 40])
    match name:
        case "key_ends":
            rows = rows._replace(keys=BinaryColumn(rows.keys.flat, changed))
        case "ends":
            rows = rows._replace(values=BinaryColumn(rows.values.flat, changed))
        case "old_sizes":
            old = old._replace(lengths=changed)
        case _:
            rows = rows._replace(**{name: changed})
    assert made(rows, old) is None


def sealed(key: bytes, value: bytes) -> bytes:
    """The value with the checksum that it would have."""
    if len(value) < 8 or len(value) % 8:
        return value
    hash, _ = hasher(len(key), len(value))(key, bytes(4) + value[4:])
    return struct.pack("<I", hash & 0xFFFFFFFF) + value[4:]


@needs_kernel
@given(st.integers(0, 1 << 30), st.booleans())
def test_damaged_values_are_left_to_python(seed: int, seals: bool) -> None:
    """Old values that say other sizes than they have are not believed, and nothing beyond them is read."""
    random = Random(seed)
    rows = encoder().many(ROWS, ROWS.nbytes, None)
    assert rows is not None
    keys, values = rows.keys.to_list(), rows.values.to_list()
    old = [values[place] for place in rows.order.tolist()]
    place = random.choice([0, len(old) - 1, random.randrange(len(old))])
    damaged = bytearray(old[place])
    # What says how long the rest is: the sizes of the two texts, after checksum, schema id and null bitmap.
    at = random.choice([4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    damaged[at] ^= 1 << random.randrange(8)
    given = bytes(damaged[: random.choice([len(damaged), len(damaged) - 8, 8, 4])])
    old[place] = sealed(keys[place], given) if seals else given
    found = made(rows, stored(old))
    assert found is None or seals
    if found is not None:
        WRITES.records.decoded(found.batch, found.records)[1].validate()


def flat() -> tuple[Any, writes.Table]:
    kernel, table = library.kernel(), layout_of(DEFINITION).flat
    assert kernel is not None
    assert table is not None
    return kernel, table


def encoder() -> writes.RowEncoder:
    encode_few = library.few_encoder()
    assert encode_few is not None
    kernel, table = flat()
    return writes.RowEncoder(kernel, encode_few, table)


@needs_kernel
def test_places_that_do_not_lie_together_are_kept_until_the_kernel_has_read_them() -> None:
    """A copy whose memory was given back would have other numbers."""
    kernel, table = flat()
    rows = ROWS.take(pa.array(np.arange(1_000) % len(ROWS)))
    keys = BinaryColumn(np.zeros(9_000, np.uint8), np.repeat(np.arange(1_001) * 9, 2)[::2])
    places = np.repeat(np.arange(1_000), 2)
    apart, together = (
        writes.encode(kernel, table, rows, rows.nbytes, each, keys) for each in (places[::2], places[::2].copy())
    )
    assert apart is not None
    assert together is not None
    assert apart[0].to_list() == together[0].to_list()


@needs_kernel
def test_texts_that_end_before_they_begin_are_left_to_python() -> None:
    kernel, table = flat()
    ends = pa.py_buffer(np.array([0, 20, 0, 20, 20], np.int32))
    text = pa.Array.from_buffers(pa.string(), 4, [None, ends, pa.py_buffer(b"a" * 20)])
    some = ROWS.slice(0, 4)
    rows = pa.RecordBatch.from_arrays([text, some["k"], some["f"], some["b"]], schema=SCHEMA)
    keys = grouped(layout_of(DEFINITION), ROWS.slice(0, 4)).keys
    assert writes.encode(kernel, table, rows, 1_000, np.arange(4), keys) is None
    assert encoder().many(rows, 1_000, None) is None
    assert encoder().few(rows, 1_000) is None
