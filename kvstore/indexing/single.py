"""Finding one row by one value of a secondary index, almost without Arrow, whose calls cost more than the search.

It handles integers and text. What it leaves to the general search is :data:`UNKNOWN`: other types, several conditions,
and entries that are not whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from kvstore.disk.environment import Transaction
from kvstore.index.index import Index, View
from kvstore.indexing.entries import columns_of
from kvstore.indexing.newer import NewerEntries
from kvstore.memtable.memtable import Memtable, Published
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from logformat.rows.entries import CODE_BYTES_MAX, LENGTHS, between, entries_prefix, row_key_of
from logformat.rows.few.single_row import encoder_of
from logformat.rows.keys import ROW

FEW_KEYS = 64
"""More rows are found faster as columns."""


class Unknown(Enum):
    """Type of :data:`UNKNOWN`."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
"""The general search has to say it."""


class SingleSearches:
    """Searches in one bucket, of one definition of its table; any thread may use it.

    Args:
        definition: The table's entry in the catalog.

    Attributes:
        makes_tables: Whether Python's values are those of all columns, so that :meth:`table_of` may be asked.
    """

    def __init__(self, definition: TableDefinition) -> None:
        self._definition = definition
        self._layout = layout_of(definition)
        self._codec = self._layout.single
        self._of_column = {}
        self._struct = pa.struct(list(definition.schema))
        self.makes_tables = all(map(_is_plain, definition.schema.types))
        for each in reversed(definition.indexes):
            name = columns_of(definition, each)[0]
            kind = definition.schema.field(name).type
            if pa.types.is_integer(kind) or pa.types.is_string(kind):
                head = entries_prefix(each.index_id)
                self._of_column[name] = each, int if pa.types.is_integer(kind) else str, encoder_of(kind), head
        key = [definition.schema.field(name).type for name in definition.primary_key or ()]
        # Then each is whole in its entry, so the entries of one value are in the order of the keys.
        self._are_keys_numbers = len(key) == 1 and pa.types.is_integer(key[0])
        self._whole: tuple[Index, int, int] | None = None

    def serves(self, column: str, value: Any) -> bool:
        """Whether :meth:`find` may be asked for a value of a column."""
        kind = self._of_column.get(column)
        return kind is not None and type(value) is kind[1]

    def find(self, view: View, column: str, value: Any) -> dict[str, Any] | Unknown | None:
        """The first row of a view, in key order, that has a value; None if there is none.

        Raises:
            CorruptData: A row or an entry is damaged.
        """
        index, _, encode, _ = self._of_column[column]
        code = encode(value)
        if code is None or not view.has_entries(index.index_id):
            return UNKNOWN
        ends = between(index.index_id, ROW + code, ROW + code)
        keys = {row_key_of(*pair) for pair in view.entries([ends])}
        newer = NewerEntries(view.layers, self._definition, index).few_keys([ends], FEW_KEYS)
        if newer is None:
            return UNKNOWN
        keys.update(newer)
        ordered = sorted(keys)
        rows = self.decoded(list(zip(ordered, view.get(ordered), strict=True)), column, value, 1)
        return UNKNOWN if rows is UNKNOWN else next(iter(rows), None)

    def find_in(self, memtable: Memtable, column: str, value: Any, most: int) -> list[dict[str, Any]] | Unknown:
        """The first rows of everything that is published, in key order, that have a value.

        Args:
            most: Number of rows that are returned, at most.

        Raises:
            CorruptData: A row or an entry is damaged.
        """
        index, _, encode, head = self._of_column[column]
        code = encode(value)
        if code is None:
            return UNKNOWN
        code = ROW + code
        start = head + code[:CODE_BYTES_MAX]
        is_short = len(code) <= CODE_BYTES_MAX
        # No entry that begins with a short code has another value, and most have the row's key after it.
        its_length, after_code = LENGTHS[len(code)] if is_short else None, len(start)
        is_first_enough = most == 1 and is_short and self._are_keys_numbers

        def look(transaction: Transaction, published: Published) -> list[tuple[bytes, bytes]] | None:
            known = memtable.index, index.index_id, transaction.id()
            if known != self._whole:
                if not View(transaction).has_entries(index.index_id):
                    return None
                self._whole = known
            keys: list[bytes] = []
            layers = published.rows.dicts
            cursor = transaction.cursor()
            is_there = cursor.set_range(start)
            while is_there:
                entry, length = cursor.item()
                if not entry.startswith(start):
                    break
                if len(keys) == FEW_KEYS:
                    return None
                is_whole = length == its_length
                keys.append(ROW + entry[after_code:] if is_whole else row_key_of(entry, length))
                if is_whole and is_first_enough and not layers:
                    break
                is_there = cursor.next()
            if layers:
                made = tuple(zip(layers, published.rows.made, strict=True))
                newer = NewerEntries(made, self._definition, index)
                more = newer.few_keys([between(index.index_id, code, code)], FEW_KEYS)
                if more is None:
                    return None
                keys += more
            if len(keys) > 1:
                keys = sorted(set(keys))
                if len(keys) > FEW_KEYS:
                    return None
            rows = []
            for key in keys:
                for layer in layers:
                    if (row := layer.get(key)) is not None:
                        break
                else:
                    row = transaction.get(key) or b""
                rows.append((key, row))
            return rows

        rows = memtable.at_once(look)
        return UNKNOWN if rows is None else self.decoded(rows, column, value, most)

    def table_of(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Rows of :meth:`find_in`, if :attr:`makes_tables`."""
        # One call for all columns: it costs as much as one for each.
        batch = pa.RecordBatch.from_struct_array(pa.array(rows, self._struct))
        return pa.Table.from_batches([batch], self._definition.schema)

    def decoded(
        self, pairs: Sequence[tuple[bytes, bytes]], column: str, value: Any, most: int
    ) -> list[dict[str, Any]] | Unknown:
        """The first of some rows that have a value.

        Args:
            pairs: Keys, each with its row, empty where there is none.
            most: Number of rows that are returned, at most.
        """
        rows: list[dict[str, Any]] = []
        for key, row in pairs:
            if not row:
                continue
            given = self._codec.key_of(key)
            decoded = None if given is None else self._codec.decode(given, key, row)
            if decoded is None:
                return UNKNOWN
            if decoded[column] == value:
                rows.append(decoded)
                if len(rows) == most:
                    break
        return rows


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    is_number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind) or types.is_boolean(kind)
    return bool(is_number or types.is_string(kind) or types.is_binary(kind))
