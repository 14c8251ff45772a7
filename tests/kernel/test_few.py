"""Few rows that the kernel records: what it is given is held against its size, and nothing else is written.

``tests/fuzz/write_targets.py`` compares the records with those of Python.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kvstore.kernel import few, library
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from kvstore.request.small import SmallWrites
from logformat.catalog.edits import TableOptions
from logformat.ids import SchemaId, TableId
from tests.fuzz.write_targets import guarded_few
from tests.kernel.guarded import guarded

SCHEMA = pa.schema(
    [
        pa.field("a", pa.string()),
        pa.field("k", pa.string(), False),
        pa.field("f", pa.bool_()),
        pa.field("n", pa.int32()),
    ]
)
DEFINITION = TableDefinition(TableId(1), "t", {SchemaId(1): SCHEMA}, ("k",), 1, TableOptions())
WRITES = SmallWrites(DEFINITION, ("k",), has_kernel=False)


def operations(count: int) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of some rows."""
    rows = [{"k": f"{nth}\0", "a": "a" * nth, "f": nth % 3 == 0, "n": nth} for nth in range(count)]
    found = [each for row in rows if (each := WRITES.rows.upsert(row)) and each.value]
    return [each.code for each in found], [each.value or b"" for each in found]


@pytest.mark.parametrize("count", [1, few.OPERATIONS_MAX, few.OPERATIONS_MAX + 1])
def test_a_number_of_operations_has_room_or_is_left_to_python(count: int) -> None:
    native = guarded_few(DEFINITION)
    if native is None:
        return
    keys, values = operations(count)
    found = native.make(keys, values, values)
    assert (found is None) == (count > few.OPERATIONS_MAX)
    assert found is None or (found.records, found.added_rows, found.digest) == (2 * count, 0, 0)


@given(
    lack=st.integers(-50, 500), count=st.sampled_from([1, 1, 1, -1, 0, 2, 3]), more=st.sampled_from([0, 0, 0, -8, 3])
)
def test_nothing_is_read_or_written_elsewhere_whatever_the_sizes_say(lack: int, count: int, more: int) -> None:
    make, table = library.record_maker(), layout_of(DEFINITION).flat
    if make is None or table is None:
        return
    calls: list[tuple[Any, ...]] = []

    def noted(*arguments: Any) -> int:
        calls.append(arguments)
        assert make is not None
        return make(*arguments)

    keys, values = (each[-1:] for each in operations(200))
    native = few.FewRecords(noted, table, WRITES.records.template, preimages=True, inserts=True)
    found = native.make(keys, values, [None])
    assert found is not None
    ((its_table, data, data_bytes, *_),) = calls
    room = 64 + len(found.batch) - lack
    sizes = struct.pack("<9I", len(keys[0]), len(values[0]) + more, 0, *[2**32 - 1] * 6)
    placed = [guarded(each) for each in (data, sizes, bytes(room))]
    addresses = [ctypes.c_void_p(each.ctypes.data) for each in placed]
    status = make(its_table, addresses[0], data_bytes, addresses[1], count, addresses[2], room)
    assert (status == 0) == (count == 1 and more == 0 and lack <= 0)
