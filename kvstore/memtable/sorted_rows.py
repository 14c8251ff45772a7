"""Rows of layers in key order, some at a time, as a merge stores them.

The keys of dicts are sorted together, once; their rows are looked up when they are taken. Runs are sorted already, and
stay as they are: rows of several are brought together when they are taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, groupby
from typing import Protocol, cast

import numpy as np

from kvstore.memtable.layers import Layers
from kvstore.memtable.run import Run, merged
from logformat.binary_column import BinaryColumn
from logformat.rows.ordering import in_order

_SORTED_BY_NUMBERS = 1000
"""So many keys are sorted faster by numbers than as objects."""


class _Keys(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> bytes: ...


class SortedRows:
    """The newest row of each key of some layers.

    Args:
        layers: They change no more.
    """

    def __init__(self, layers: Layers[bytes, bytes]) -> None:
        self._parts: list[_OfDicts | _OfRun] = []  # the oldest first
        for is_dict, some in groupby(reversed(layers.dicts), lambda layer: isinstance(layer, dict)):
            if is_dict:
                self._parts.append(_OfDicts(Layers(tuple(reversed(list(some))))))
            else:
                self._parts += [_OfRun(cast("Run", each)) for each in some]
        self._places = [0] * len(self._parts)
        self._count = sum(len(each.keys) for each in self._parts)

    @property
    def left(self) -> int:
        """Number of rows that were not taken, at most."""
        return self._count - sum(self._places)

    @property
    def share(self) -> float:
        """Which part of the rows was taken."""
        return sum(self._places) / self._count if self._count else 1.0

    def all(self) -> Run:
        """All rows; none was taken."""
        return merged([each.run(0, len(each.keys)) for each in self._parts]) if self._parts else Run.of([], [])

    def next(self, count: int, bytes_max: int) -> tuple[list[bytes], list[bytes], list[int]]:
        """Keys and rows that come next; and the places to give to :meth:`taken` once they are stored.

        Args:
            count: How many, about; at least one.
            bytes_max: They are no more once they have more bytes than this.
        """
        ends = self._ends(count)
        all_parts = zip(self._parts, self._places, ends, strict=True)
        taken = [(part, first, last) for part, first, last in all_parts if last > first]
        if not taken:
            return [], [], ends
        if len(taken) == 1:
            ((part, first, last),) = taken
            keys, rows = part.pairs(first, last)
        else:
            run = merged([part.run(first, last) for part, first, last in taken])
            keys, rows = run.keys.to_list(), run.rows.to_list()
        if sum(map(len, rows)) > bytes_max:
            few = next(few for few, size in enumerate(accumulate(map(len, rows)), 1) if size > bytes_max)
            keys, rows = keys[:few], rows[:few]
            ends = self._up_to(keys[-1], ends)
        return keys, rows, ends

    def taken(self, places: list[int]) -> None:
        """What :meth:`next` has given is stored."""
        self._places = places

    def _ends(self, count: int) -> list[int]:
        """Places of the end of about so many rows, each part up to the same key."""
        each = max(count // max(len(self._parts), 1), 1)
        ends = [min(place + each, len(part.keys)) for part, place in zip(self._parts, self._places, strict=True)]
        last = [part.keys[end - 1] for part, end in zip(self._parts, ends, strict=True) if end < len(part.keys)]
        return self._up_to(min(last), ends) if last and len(self._parts) > 1 else ends

    def _up_to(self, key: bytes, ends: Sequence[int]) -> list[int]:
        places = zip(self._parts, self._places, ends, strict=True)
        return [bisect_right(cast("Sequence[bytes]", part.keys), key, place, end) for part, place, end in places]


class _OfRun:
    def __init__(self, run: Run) -> None:
        self._run = run
        self.keys: _Keys = run.keys

    def run(self, first: int, last: int) -> Run:
        return self._run.slice(first, last)

    def pairs(self, first: int, last: int) -> tuple[list[bytes], list[bytes]]:
        some = self._run.slice(first, last)
        return some.keys.moved().to_list(), some.rows.moved().to_list()


class _OfDicts:
    def __init__(self, layers: Layers[bytes, bytes]) -> None:
        self._layers = layers
        self.keys = _Ordered(layers)

    def run(self, first: int, last: int) -> Run:
        return Run.of(*self.pairs(first, last))

    def pairs(self, first: int, last: int) -> tuple[list[bytes], list[bytes]]:
        keys = self.keys.between(first, last)
        return keys, [row for row in self._layers.newest(keys) or () if row is not None]


class _Ordered:
    """The keys of dicts in order."""

    def __init__(self, layers: Layers[bytes, bytes]) -> None:
        names = list(chain.from_iterable(layers.dicts))
        if len(names) < _SORTED_BY_NUMBERS:
            self._names = sorted({*names})  # some perhaps more than once
            self._order = np.arange(len(self._names))
        else:
            order, differs = in_order(BinaryColumn.from_list(names))
            self._names, self._order = names, order[np.append(True, differs)]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> bytes:
        return self._names[self._order[place]]

    def between(self, first: int, last: int) -> list[bytes]:
        return list(map(self._names.__getitem__, self._order[first:last].tolist()))
