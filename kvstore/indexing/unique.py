"""Unique indexes: no two rows have the same values in their columns, unless one of the values is null.

* The writer of a bucket tests each request in the bucket's turn, against what the requests before it have left.
* Entries say which rows of the bucket's index, and of runs, may have a value; a dict of codes says so of all other
  newer rows. Both may name more rows than have it, never fewer, so each named row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import UniqueViolation
from kvstore.index.index import View
from kvstore.indexing.entries import SCAN_ROWS, columns_of
from kvstore.indexing.newer import NewerEntries
from kvstore.memtable.memtable import Memtable
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import SecondaryIndex
from logformat.checksum import key_sums, mix
from logformat.rows.entries import between, code_of, codes_of, ranges_of, row_key_of, row_keys_of
from logformat.rows.json_form import shown_values


class UniqueIndexes:
    """The unique indexes of a table in one bucket.

    Args:
        definition: The table's entry in the catalog.
        memtable: Memtable of the bucket; all entries of its index are whole.
    """

    def __init__(self, definition: TableDefinition, memtable: Memtable) -> None:
        self._definition = definition
        self._memtable = memtable
        self._by_id = {each.index_id: each for each in definition.indexes if each.unique}
        self._newer: dict[int, dict[bytes, tuple[bytes, ...]]] | None = None

    @classmethod
    def of(cls, definition: TableDefinition, memtable: Memtable) -> Self | None:
        """Those of a table; None if it has none."""
        return cls(definition, memtable) if any(each.unique for each in definition.indexes) else None

    def forget(self) -> None:
        """Forget which rows are newer than the index; the next test looks at all of them."""
        self._newer = None

    def check(self, put: Mapping[bytes, bytes], removed: Sequence[bytes]) -> None:
        """Test the rows that a request leaves, before they are stored.

        Args:
            put: The row that each key gets.
            removed: Keys whose rows go.

        Raises:
            UniqueViolation: Another row has the same values.
            CorruptData: A row or an entry is damaged.
        """
        if self._newer is None:
            self._newer = {id: {} for id in self._by_id}
            self.note({key: row for key, row in self._memtable.newer().items() if row})
        changed = {*put, *removed}
        for each in self._by_id.values():
            codes = dict(codes_of_rows(self._definition, each, put))
            owner: dict[bytes, bytes] = {}
            for key, code in codes.items():
                if (other := owner.setdefault(code, key)) != key:
                    raise self._violation(each, put[other], other)
            named = sorted(self._named(each, owner) - changed)
            rows = {key: row for key, row in zip(named, self._memtable.get(named), strict=True) if row}
            for key, code in codes_of_rows(self._definition, each, rows):
                if code in owner:
                    raise self._violation(each, rows[key], key)
        self.note(put)

    def _named(self, each: SecondaryIndex, codes: Mapping[bytes, bytes]) -> set[bytes]:
        """Keys of all rows that may have one of the codes."""
        assert self._newer is not None
        newer = self._newer[each.index_id]
        ranges = ranges_of(each.index_id, codes)
        named = set(NewerEntries(self._memtable.runs(), self._definition, each).keys(ranges))
        for code in codes:
            named.update(newer.get(code, ()))
        with self._memtable.index.view() as view:
            named.update(row_keys_of(list(view.entries(ranges))))
        return named

    def note(self, rows: Mapping[bytes, bytes]) -> None:
        """Note which values rows have that are stored now."""
        for id, newer in (self._newer or {}).items():
            each = self._by_id[id]
            for key, code in codes_of_rows(self._definition, each, rows):
                known = newer.get(code, ())
                if key not in known:
                    newer[code] = (*known, key)

    def _violation(self, each: SecondaryIndex, row: bytes, key: bytes) -> UniqueViolation:
        return violation(self._definition, each, key, row)


def violation(definition: TableDefinition, index: SecondaryIndex, key: bytes, row: bytes) -> UniqueViolation:
    """The error about a row that has values which another row was to have, too."""
    pair = BinaryColumn.from_list([key]), BinaryColumn.from_list([row])
    row_batch = layout_of(definition).decode_found(*pair)[0]

    def of(names: Sequence[str]) -> Any:
        values = tuple(shown_values(row_batch.column(name))[0] for name in names)
        return values[0] if len(values) == 1 else values

    return UniqueViolation(
        "Another row has this value, of which the index allows one; change that row, or write another value.",
        table=definition.name,
        index=index.name,
        value=of(columns_of(definition, index)),
        key=of(definition.primary_key or ()),
    )


def duplicate(definition: TableDefinition, index: SecondaryIndex, view: View) -> tuple[bytes, bytes] | None:
    """The key and the row of a row of a view whose values another one has, too; None if there is none.

    Args:
        view: View of the bucket's index, with whole entries.

    Raises:
        CorruptData: A row or an entry is damaged.
    """
    for _, group in groupby(view.entries([between(index.index_id, b"", b"")]), lambda pair: code_of(*pair)):
        pairs = list(group)
        if len(pairs) == 1:
            continue
        keys = sorted(row_key_of(*pair) for pair in pairs)
        rows = {key: row for key, row in zip(keys, view.get(keys), strict=True) if row}
        seen: set[bytes] = set()
        for key, code in codes_of_rows(definition, index, rows):
            if code in seen:
                return key, rows[key]
            seen.add(code)
    return None


def duplicate_row(definition: TableDefinition, index: SecondaryIndex, view: View) -> tuple[bytes, bytes] | None:
    """Like :func:`duplicate`, of all rows of a view, before there are entries.

    It holds eight bytes for each row, and reads the rows again only if two of them may have the same values.

    Raises:
        CorruptData: A row is damaged.
    """
    hashes = [mix(key_sums(codes)) for _, _, codes in _all_codes(definition, index, view)]
    ordered = np.sort(np.concatenate([np.zeros(0, np.uint64), *hashes]))
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return None
    seen: set[bytes] = set()
    for keys, rows, codes in _all_codes(definition, index, view):
        for row in np.flatnonzero(np.isin(mix(key_sums(codes)), twice)).tolist():
            if codes[row] in seen:
                return keys[row], rows[row]
            seen.add(codes[row])
    return None


def _all_codes(
    definition: TableDefinition, index: SecondaryIndex, view: View
) -> Iterator[tuple[BinaryColumn, BinaryColumn, BinaryColumn]]:
    """Keys of the rows of a view without a null in a column of an index, the rows, and their codes; some at a time."""
    names = columns_of(definition, index)
    for keys, rows in view.rows(SCAN_ROWS):
        columns = layout_of(definition).decode_found(keys, rows, names)[0].columns
        has_all = reduce(pc.and_, (column.is_valid() for column in columns))
        places = np.flatnonzero(has_all.to_numpy(zero_copy_only=False))
        if len(places):
            codes = codes_of([column.filter(has_all) for column in columns])
            yield keys.take(places), rows.take(places), codes


def codes_of_rows(
    definition: TableDefinition, index: SecondaryIndex, rows: Mapping[bytes, bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Keys of rows and their codes, without rows that have a null in one of the columns."""
    if not rows:
        return
    names = columns_of(definition, index)
    columns = BinaryColumn.from_list(list(rows)), BinaryColumn.from_list(list(rows.values()))
    columns_of_rows: pa.RecordBatch = layout_of(definition).decode_found(*columns, names)[0]
    has_null = [False] * len(rows)
    for column in columns_of_rows.columns:
        if column.null_count:
            has_null = [known or null for known, null in zip(has_null, column.is_null().to_pylist(), strict=True)]
    for key, code, null in zip(rows, codes_of(columns_of_rows.columns).to_list(), has_null, strict=True):
        if not null:
            yield key, code
