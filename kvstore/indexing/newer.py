"""Entries of the rows that are newer than the index of their bucket.

* They are made of each layer when it is first searched, and sorted as those in the index are. So a search does not read
  the rows of the memtable.
* A row that another layer replaces has an entry, too: entries only name rows to look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvstore.index.index import Layer
from kvstore.indexing.entries import entries_of_rows
from kvstore.memtable.layers import MADE_BYTES
from kvstore.memtable.run import FEW_KEYS, Run
from kvstore.meta.state import TableDefinition
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import SecondaryIndex
from logformat.rows.entries import row_keys_of


class NewerEntries:
    """The entries of one secondary index in some layers.

    Args:
        layers: Each with what was made of it.
        definition: It has the schemas of all rows.

    Raises:
        CorruptData: A row is damaged.
    """

    def __init__(
        self, layers: Sequence[tuple[Layer, dict[Any, Any]]], definition: TableDefinition, index: SecondaryIndex
    ) -> None:
        self._runs: list[Run] = []
        for layer, made in layers:
            if index.index_id not in made:
                run = entries_of_layer(layer, definition, index)
                if made.setdefault(index.index_id, run) is run:  # else another thread has made them, too
                    made[MADE_BYTES] = made.get(MADE_BYTES, 0) + run.size
            self._runs.append(made[index.index_id])

    def keys(self, ranges: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Keys of the rows whose entries are in ranges, some perhaps twice."""
        return [key for run in self._runs for key in _named(run, _places(run, ranges))]

    def few_keys(self, ranges: Sequence[tuple[bytes, bytes]], most: int) -> list[bytes] | None:
        """Like :meth:`keys`; None if there are more than so many."""
        places = [(run, _places(run, ranges)) for run in self._runs]
        if sum(len(each) for _, some in places for each in some) > most:
            return None
        return [key for run, some in places for key in _named(run, some)]


def entries_of_layer(layer: Layer, definition: TableDefinition, index: SecondaryIndex) -> Run:
    """The entries of a layer, as a run; see :class:`NewerEntries`."""
    if isinstance(layer, Run):
        keys, rows = layer.keys, layer.rows
    else:
        pairs = list(layer.items())
        keys, rows = (BinaryColumn.from_list([pair[side] for pair in pairs]) for side in (0, 1))
    places = np.flatnonzero(rows.lengths > 0)
    return Run(*entries_of_rows(definition, index, keys.take(places), rows.take(places)))


def _places(run: Run, ranges: Sequence[tuple[bytes, bytes]]) -> list[range]:
    """Places of the entries in each range that has some."""
    if len(ranges) < FEW_KEYS:
        ends: Iterator[tuple[int, int]] = ((run.first_place(start), run.first_place(stop)) for start, stop in ranges)
    else:
        starts, stops = zip(*ranges, strict=True)
        ends = zip(run.first_places(starts).tolist(), run.first_places(stops).tolist(), strict=True)
    return [range(low, high) for low, high in ends if low < high]


def _named(run: Run, places: Sequence[range]) -> Iterator[bytes]:
    if len(places) < FEW_KEYS:
        for each in places:
            yield from row_keys_of(list(run.slice(each.start, each.stop).items()))
    else:
        at = np.concatenate([np.arange(each.start, each.stop) for each in places])
        yield from row_keys_of(list(Run(run.keys.take(at), run.rows.take(at)).items()))
