"""Finds keys by the native kernel, where there is one, and by the reference: both must come to the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from kvstore.errors import CorruptData
from kvstore.index import mapped
from kvstore.index.found_rows import FoundRows
from kvstore.index.index import View
from kvstore.kernel import library, pages
from kvstore.read import lookup, scan
from kvstore.request.native_rows import native_columns, rows_found
from kvstore.request.row_layout import TableLayout
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from tests.kernel.reference import Refused, found_by_reference
from tests.support.contents import values_of


def assert_both_agree(data: bytes, places: Sequence[np.ndarray], transaction: int, keys: Sequence[bytes]) -> bool:
    """Find keys in a file that may be damaged; returns whether all could be looked for.

    Args:
        places: Where the same bytes are in memory.
    """
    values, refusals = found_by_reference(data, transaction, keys)
    if library.kernel() is not None:
        for place in places:
            found = found_by_kernel(place, transaction, keys)
            assert found in refusals if refusals else found == values
    return not refusals


def found_by_kernel(place: np.ndarray, transaction: int, keys: Sequence[bytes]) -> list[bytes] | Refused:
    """Values of keys in a file, empty where there is none: the same in a column and in a list."""
    in_column = _found(pages.find, place, transaction, BinaryColumn.from_list(keys))
    in_list = _found(pages.get, place, transaction, keys)
    if not isinstance(in_column, Refused):
        there, values = in_column
        strings = iter(values.to_list())
        in_column = [next(strings) if its_there else b"" for its_there in there]
    assert in_column == in_list
    return in_list


def _found(find: Callable[..., Any], place: np.ndarray, transaction: int, keys: object) -> Any:
    kernel = library.kernel()
    assert kernel is not None
    try:
        found = find(kernel, place, transaction, keys)
    except pages.BeyondMap as beyond:
        return Refused(beyond.page, is_beyond=True)
    except CorruptData as error:
        return Refused(error.where["page"])
    return Refused(None) if found is None else found


def assert_same_columns(
    found: Sequence[pa.Array],
    layout: TableLayout,
    values: BinaryColumn,
    places: np.ndarray,
    keys: BinaryColumn,
    names: Sequence[str],
    *,
    valid: bool = True,
) -> None:
    """Columns that the kernel decoded are those that Python decodes; see ``native_columns`` for the arguments.

    Args:
        valid: Whether the values are those of their types; text may be none if it comes from anywhere.
    """
    expected = layout.decode_values(values, key_sums(keys)[places], names)
    row_of_key: list[int | None] = [None] * len(keys)
    for row, place in enumerate(places.tolist()):
        row_of_key[place] = row
    taken = pa.array(row_of_key, pa.int64())
    for column, its in zip(found, expected, strict=True):
        same = its.take(taken)
        column.validate(full=valid)
        assert column.null_count == same.null_count
        assert values_of(column) == values_of(same) if valid else column.equals(same)


@contextmanager
def lookups_both_ways() -> Iterator[list[int]]:
    """Every lookup in this process, and each batch of a scan, is made with and without the kernel, however small it is.

    Yields:
        For each lookup of the kernel how many keys it had.
    """
    plain, counts = View.find, list[int]()

    def both(view: View, keys: BinaryColumn) -> tuple[np.ndarray, BinaryColumn]:
        there, values = plain(view, keys)
        with library.switched_off():
            expected_there, expected = plain(view, keys)
        assert there.tolist() == expected_there.tolist()
        assert values.to_list() == expected.to_list()
        return there, values

    def counted(*arguments: object) -> tuple[np.ndarray, BinaryColumn] | None:
        found = found_plainly(*arguments)  # type: ignore[arg-type]
        if found is not None:
            counts.append(len(found[0]))
        return found

    def both_got(view: View, keys: Sequence[bytes]) -> list[bytes]:
        values = got_plainly(view, keys)
        with library.switched_off():
            assert values == got_plainly(view, keys)
        return values

    found_plainly, got_plainly = pages.find, View.get

    def decoded(
        layout: TableLayout, values: BinaryColumn, places: np.ndarray, keys: BinaryColumn, names: Sequence[str]
    ) -> list[pa.Array] | None:
        columns = native_columns(layout, values, places, keys, names)
        if columns is not None:
            assert_same_columns(columns, layout, values, places, keys, names)
        return columns

    def scanned(layout: TableLayout, found: FoundRows, names: Sequence[str] | None = None) -> pa.RecordBatch:
        rows = rows_found(layout, found, names)
        rows.validate(full=True)
        with library.switched_off():
            expected = rows_found(layout, found, names)
        assert rows.schema == expected.schema
        assert rows.num_rows == expected.num_rows
        for column, its in zip(rows.columns, expected.columns, strict=True):
            assert column.null_count == its.null_count
            assert values_of(column) == values_of(its)
        return rows

    with (
        mock.patch.object(scan, "rows_found", scanned),
        mock.patch.object(lookup, "native_columns", decoded),
        mock.patch.object(View, "find", both),
        mock.patch.object(View, "get", both_got),
        mock.patch.object(mapped, "KEYS_MIN", 0),
        mock.patch.object(mapped, "FEW_KEYS_MIN", 0),
        mock.patch.object(pages, "find", counted),
    ):
        yield counts
