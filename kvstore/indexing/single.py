"""Finding one row by one value of a secondary index, almost without Arrow, whose calls cost more than the search.

It handles integers and text. What it leaves to the general search is :data:`UNKNOWN`: other types, several conditions,
entries that are not whole, and rows that another process has written since its last merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from kvstore.index.index import Layer, View
from kvstore.indexing.entries import columns_of
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.rows.entries import between, codes_of, row_key_of
from logformat.rows.few.single_row import encoder_of
from logformat.rows.keys import ROW


class Unknown(Enum):
    """Type of :data:`UNKNOWN`."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
"""The general search has to say it."""


class SingleSearches:
    """Searches in one bucket, of one definition of its table; any thread may use it.

    Args:
        definition: The table's entry in the catalog.
    """

    def __init__(self, definition: TableDefinition) -> None:
        self._definition = definition
        self._layout = layout_of(definition)
        self._codec = self._layout.single
        self._of_column = {}
        for each in reversed(definition.indexes):
            name = columns_of(definition, each)[0]
            kind = definition.schema.field(name).type
            if pa.types.is_integer(kind) or pa.types.is_string(kind):
                self._of_column[name] = each.index_id, int if pa.types.is_integer(kind) else str, encoder_of(kind)
        # Codes of rows that are newer than the index, by the dict that holds them, which does not change any more.
        self._codes: tuple[tuple[Layer, dict[str, dict[bytes, list[bytes]]]], ...] = ()

    def serves(self, column: str, value: Any) -> bool:
        """Whether :meth:`find` may be asked for a value of a column."""
        found = self._of_column.get(column)
        return found is not None and type(value) is found[1]

    def find(self, view: View, column: str, value: Any) -> dict[str, Any] | Unknown | None:
        """The first row of a view, in key order, that has a value; None if there is none.

        Raises:
            CorruptData: A row or an entry is damaged.
        """
        index_id, _, encode = self._of_column[column]
        code, layers = encode(value), view.layers
        if code is None or layers is None or not view.has_entries(index_id):
            return UNKNOWN
        code = ROW + code
        keys = {row_key_of(*pair) for pair in view.entries(*between(index_id, code, code))}
        for codes in self._codes_of(layers, column):
            keys.update(codes.get(code, ()))
        for key in sorted(keys):
            row = next((row for layer in layers if (row := layer.get(key)) is not None), None)
            if row is None:
                (row,) = view.get_stored([key])
            if not row:
                continue
            given = self._codec.key_of(key)
            decoded = None if given is None else self._codec.decode(given, key, row)
            if decoded is None:
                return UNKNOWN
            if decoded[column] == value:
                return decoded
        return None

    def _codes_of(self, layers: Sequence[Layer], column: str) -> list[dict[bytes, list[bytes]]]:
        if not layers:
            self._codes = ()
            return []
        known = [next((each for each in self._codes if each[0] is layer), (layer, {})) for layer in layers]
        for rows, by_column in known:
            if column not in by_column:
                by_column[column] = self._coded(rows, column)
        self._codes = tuple(known)
        return [by_column[column] for _, by_column in known]

    def _coded(self, layer: Layer, column: str) -> dict[bytes, list[bytes]]:
        rows = {key: row for key, row in layer.items() if row}
        found: dict[bytes, list[bytes]] = {}
        if rows:
            columns = BinaryColumn.from_list(list(rows)), BinaryColumn.from_list(list(rows.values()))
            values = self._layout.decode_found(*columns, [column])[0].columns
            for key, code in zip(rows, codes_of(values).to_list(), strict=True):
                found.setdefault(code, []).append(key)
        return found
