"""Where among the keys a filter can be true.

Arrow decides: the keys there are are cut into ranges, and it is asked for each whether the filter can hold between the
values of the key's first column at both ends. Where it can in some and not in others, those are cut again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from kvstore.index.index import View
from kvstore.meta.state import TableDefinition
from kvstore.table.layout import layout_of
from kvstore.table.scan import KeyRange, evenly_between
from logformat.octets import Octets
from logformat.python_values import MISFITS

PARTS = 16
"""A range is cut into so many,"""
CUTS_MAX = 8
"""and its parts again, so many times at most."""

_FORMAT, _FILES = ds.ParquetFileFormat(), LocalFileSystem()


def ranges_where(view: View, definition: TableDefinition, filter: pc.Expression) -> list[KeyRange]:
    """Ranges of keys, in order, outside of which no row passes a filter."""
    bounds = view.bounds()
    if bounds is None:
        return []
    ranges = _possible([bounds], definition, filter)
    done: list[tuple[bytes, bytes]] = []
    for _ in range(CUTS_MAX):
        smaller = []
        for first, last in ranges:
            parts = list(pairwise([first, *_keys_between(view, first, last), last]))
            possible = _possible(parts, definition, filter)
            if len(possible) == len(parts):
                done.append((first, last))
            else:
                smaller += possible
        ranges = smaller
    return [KeyRange(first, last + b"\0") for first, last in _joined(sorted([*done, *ranges]))]


def _keys_between(view: View, first: bytes, last: bytes) -> list[bytes]:
    """Keys that cut a range into parts; none if there are none between."""
    found = map(view.first_from, evenly_between(first, last, PARTS))
    return sorted({key for key in found if key is not None and first < key < last})


def _possible(
    ranges: Sequence[tuple[bytes, bytes]], definition: TableDefinition, filter: pc.Expression
) -> list[tuple[bytes, bytes]]:
    """Those ranges, by their first and last key, in which the filter can be true."""
    layout = layout_of(definition)
    field = pc.field(layout.key_names[0])
    lows, highs = (layout.keys.decode(Octets.from_list(list(keys)))[0] for keys in zip(*ranges, strict=True))
    # Parts of a dataset are left out by what is known of their values; that there are no files nobody notices.
    parts = [
        _FORMAT.make_fragment(str(place), _FILES, partition_expression=(field >= low) & (field <= high))
        for place, (low, high) in enumerate(zip(lows, highs, strict=True))
    ]
    dataset = ds.FileSystemDataset(parts, definition.schema, _FORMAT, _FILES)
    try:
        return [ranges[int(part.path)] for part in dataset.get_fragments(filter=filter)]
    except MISFITS:
        return list(ranges)  # it fails for a key there is; who reads the rows says so


def _joined(ranges: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Ranges that meet as one, so that none has a row twice."""
    waiting: tuple[bytes, bytes] | None = None
    for first, last in ranges:
        if waiting is not None and first <= waiting[1]:
            waiting = waiting[0], last
            continue
        if waiting is not None:
            yield waiting
        waiting = first, last
    if waiting is not None:
        yield waiting
