"""Rows of layers in key order, some at a time, as a merge stores them.

Dicts are sorted together, once. Runs are sorted already, and stay as they are: rows of several are brought together
when they are taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import cast

import numpy as np

from kvstore.memtable.layers import Layers
from kvstore.memtable.run import Run, merged
from logformat.binary_column import BinaryColumn

_IN_ORDER = "keys in order"


class RowLayers(Layers[bytes, bytes]):
    """Rows by key, empty where one was deleted."""

    @cached_property
    def run(self) -> Run:
        """All rows; the layers change no more."""
        return SortedRows(self).all()

    def in_order(self) -> list[tuple[Run | dict[bytes, bytes], Sequence[bytes] | BinaryColumn]]:
        """The layers, which change no more, each with its keys in order."""
        ordered = []
        for layer, made in zip(cast("tuple[Run | dict[bytes, bytes], ...]", self.dicts), self.made, strict=True):
            keys = made.get(_IN_ORDER)
            if keys is None:
                keys = made[_IN_ORDER] = layer.keys if isinstance(layer, Run) else sorted(layer)
            ordered.append((layer, keys))
        return ordered


class SortedRows:
    """The newest row of each key of some layers.

    Args:
        layers: They change no more.

    Attributes:
        places: How far each layer is taken.
    """

    def __init__(self, layers: Layers[bytes, bytes]) -> None:
        self._parts: list[Run] = []  # the oldest first
        for is_dict, some in groupby(reversed(layers.dicts), lambda layer: isinstance(layer, dict)):
            if is_dict:
                self._parts.append(Run.of_dict(Layers(tuple(reversed(list(some)))).all()))
            else:
                self._parts += [cast("Run", each) for each in some]
        self.places = [0] * len(self._parts)
        self._count = sum(map(len, self._parts))

    @property
    def left(self) -> int:
        """Number of rows that were not taken, at most."""
        return self._count - sum(self.places)

    @property
    def share(self) -> float:
        """Which part of the rows was taken."""
        return sum(self.places) / self._count if self._count else 1.0

    def all(self) -> Run:
        """All rows; none was taken."""
        return merged(self._parts) if self._parts else Run.of([], [])

    def next(self, count: int, bytes_max: int) -> tuple[Run, list[int]]:
        """The rows that come next; and the places to give to :meth:`taken` once they are stored.

        Args:
            count: How many at most, or one of each layer; at least one.
            bytes_max: They are no more once they have more bytes than this.
        """
        ends = self._ends(count, bytes_max)
        all_parts = zip(self._parts, self.places, ends, strict=True)
        taken = [(part, first, last) for part, first, last in all_parts if last > first]
        if not taken:
            return Run.of([], []), ends
        if len(taken) == 1:
            ((part, first, last),) = taken
            run = part.slice(first, last)
        else:
            run = merged([part.slice(first, last) for part, first, last in taken])
        offsets = run.rows.offsets
        if offsets[-1] - offsets[0] > bytes_max:
            few = int(np.searchsorted(offsets, offsets[0] + bytes_max, "right"))
            run = run.slice(0, few)
            ends = self._up_to(run.keys[-1], ends)
        return Run(run.keys.moved(), run.rows.moved()), ends

    def taken(self, places: list[int]) -> None:
        """Go on from these places, such as those after what :meth:`next` has given."""
        self.places = places

    def _ends(self, count: int, bytes_max: int) -> list[int]:
        """Places of the end of so many rows and bytes at most, each part up to the same key.

        Where keys of the parts follow each other, all may be of one part; where they alternate, of each is taken less.
        """
        left = sum(place < len(part) for part, place in zip(self._parts, self.places, strict=True))
        divisor = 1
        while True:
            ends = self._ends_of(max(count // divisor, 1), max(bytes_max // divisor, 1))
            if divisor >= left or self._fits(ends, count, bytes_max):
                return ends
            divisor = min(2 * divisor, left)

    def _ends_of(self, count: int, bytes_max: int) -> list[int]:
        """Those of so many of each part, but up to the same key."""
        parts = list(zip(self._parts, self.places, strict=True))
        ends = [_end(part, place, count, bytes_max) for part, place in parts]
        last = [part.keys[end - 1] for part, end in zip(self._parts, ends, strict=True) if end < len(part)]
        return self._up_to(min(last), ends) if last and len(parts) > 1 else ends

    def _fits(self, ends: Sequence[int], count: int, bytes_max: int) -> bool:
        if sum(ends) - sum(self.places) > count:
            return False
        parts = zip(self._parts, self.places, ends, strict=True)
        return sum(int(part.rows.offsets[end] - part.rows.offsets[place]) for part, place, end in parts) <= bytes_max

    def _up_to(self, key: bytes, ends: Sequence[int]) -> list[int]:
        places = zip(self._parts, self.places, ends, strict=True)
        return [bisect_right(cast("Sequence[bytes]", part.keys), key, place, end) for part, place, end in places]


def _end(run: Run, first: int, count: int, bytes_max: int) -> int:
    """Where so many rows end, or one, if it is larger."""
    offsets = run.rows.offsets
    most = int(np.searchsorted(offsets, offsets[first] + bytes_max, "right")) - 1
    return min(max(most, first + 1), first + count, len(run))
