"""A run: rows of keys in key order, as columns of bytes. Without an object for each, many rows cost little memory.

* Keys are sorted, each is there once, and nothing of a run changes. An empty row stands for a deleted one.
* Of runs that lie over each other the newest counts. Two that are joined are one run with what both show.
* The rows of a run may be made only when they are asked for; its keys are always there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow.compute as pc

from kvstore.index.index import Layer as RowLayer
from kvstore.kernel import library, runs as native_runs
from kvstore.memtable.layers import Layer
from logformat import binary_column
from logformat.binary_column import WORD, BinaryColumn, windows
from logformat.rows.ordering import in_order

ROW_BYTES = 24
"""What a row takes in memory beside its key and its value: where both begin, and a number to find it by."""
RUN_KEYS = 1 << 12
"""This many keys that come together are a run; fewer take less time in a dict."""
JOINED_BYTES = 32 << 20
"""Larger runs stay apart: to find a key in one run more takes less time than to bring them together."""
_SORTED_BY_NUMBERS = 1000
"""So many keys are sorted faster by numbers than as objects."""
FEW_KEYS = 16
"""So many keys are found one by one in less time."""


class Run:
    """Rows of keys.

    Args:
        rows: Of each key; or what makes them, once they are asked for.

    Attributes:
        keys: Sorted, each once.
    """

    def __init__(self, keys: BinaryColumn, rows: BinaryColumn | Callable[[], BinaryColumn]) -> None:
        self.keys = keys
        self._rows = rows

    @property
    def rows(self) -> BinaryColumn:
        """Of each key, as the index stores them; empty where it was deleted."""
        rows = self._rows
        if not isinstance(rows, BinaryColumn):
            rows = self._rows = rows()  # what they were made of may go
        return rows

    @property
    def _is_made(self) -> bool:
        return isinstance(self._rows, BinaryColumn)

    @classmethod
    def of(cls, keys: Sequence[bytes], rows: Sequence[bytes]) -> Run:
        """A run of lists."""
        return cls(BinaryColumn.from_list(keys), BinaryColumn.from_list(rows))

    @classmethod
    def of_dict(cls, rows: Mapping[bytes, bytes]) -> Run:
        """A run of rows by key."""
        if len(rows) < _SORTED_BY_NUMBERS:
            keys = sorted(rows)
            return cls.of(keys, list(map(rows.__getitem__, keys)))
        column, values = BinaryColumn.from_list(list(rows)), list(rows.values())
        order, _ = in_order(column)
        return cls(column.take(order), BinaryColumn.from_list(list(map(values.__getitem__, order.tolist()))))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys.to_list())

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """All keys, each with its row, as objects."""
        return zip(self.keys.to_list(), self.rows.to_list(), strict=True)

    def over(self, older: Layer[bytes, bytes]) -> Run | None:
        """This run, with the rows that only an older layer has; None if it would take more than 32 MiB.

        None also if the rows of one are not made yet: they stay so until they are asked for.
        """
        if not isinstance(older, Run):
            older = Run.of_dict(dict(older.items()))
        if not (self._is_made and older._is_made):
            return None
        return merged([older, self]) if older.size + self.size <= JOINED_BYTES else None

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        flats = (int(column.offsets[-1] - column.offsets[0]) for column in (self.keys, self.rows))
        return sum(flats) + ROW_BYTES * len(self)

    def slice(self, first: int, last: int) -> Run:
        """The part from one place to another (exclusive), not copied."""
        if first == last:
            return Run.of([], [])  # rows that are not made stay so
        return Run(self.keys.slice(first, last), self.rows.slice(first, last))

    def between(self, start: bytes, stop: bytes | None) -> Run:
        """The part with keys from ``start`` to ``stop`` (exclusive; None for no end), not copied."""
        low = bisect_left(self.keys, start)
        return self.slice(low, len(self) if stop is None else bisect_left(self.keys, stop, low))

    def there(self) -> Run:
        """The part without deleted keys."""
        live = self.rows.lengths > 0
        if live.all():
            return self
        places = np.flatnonzero(live)
        return Run(self.keys.take(places), self.rows.take(places))

    def get(self, key: bytes) -> bytes | None:
        """The row of a key, empty if it was deleted; None if the key is not in the run."""
        place = self._place(key)
        return None if place < 0 else self.rows[place]

    def find_all(self, keys: list[bytes]) -> list[bytes | None]:
        """The row of each key; see :meth:`get`."""
        if len(keys) < FEW_KEYS:
            return list(map(self.get, keys))
        rows: list[bytes | None] = [None] * len(keys)
        places = self.places_of(BinaryColumn.from_list(keys))
        there = np.flatnonzero(places >= 0)
        if not len(there):
            return rows
        for place, row in zip(there.tolist(), self.rows.take(places[there]).to_list(), strict=True):
            rows[place] = row
        return rows

    def places_of(self, keys: BinaryColumn) -> np.ndarray:
        """The place of each key, -1 if it is not in the run: int64 ``(n,)``."""
        if (kernel := library.kernel()) is not None:
            return native_runs.places(kernel, self.keys, keys)
        places = self._places(keys)
        may = np.flatnonzero(places >= 0)
        if not len(may):
            return places
        at, known = places[may], np.asarray(self._numbers[1])
        if (known[np.minimum(at + 1, len(known) - 1)] == known[at])[at + 1 < len(known)].any():
            for place in may.tolist():  # several keys have the same number
                places[place] = self._place(keys[place])
            return places
        is_same = pc.equal(self.keys.take(at).to_arrow(), keys.take(may).to_arrow()).to_numpy(zero_copy_only=False)
        places[may[~is_same]] = -1
        return places

    def first_place(self, key: bytes) -> int:
        """The first place with a key that is not less; the number of keys if there is none."""
        common, numbers = self._numbers
        if not key.startswith(common):
            return 0 if key < common else len(self)
        number = _number(key[len(common) :][:WORD])
        low = bisect_left(numbers, number)
        high = bisect_right(numbers, number, low)
        return low if low == high else bisect_left(self.keys, key, low, high)

    def first_places(self, keys: Sequence[bytes]) -> np.ndarray:
        """Like :meth:`first_place`, of many keys: int64 ``(n,)``."""
        common, numbers = self._numbers
        known, asked = np.asarray(numbers), _numbers_after(len(common), BinaryColumn.from_list(keys))
        places = np.searchsorted(known, asked)
        is_known = np.searchsorted(known, asked, "right") > places
        for place, (key, known_number) in enumerate(zip(keys, is_known.tolist(), strict=True)):
            if known_number or not key.startswith(common):
                places[place] = self.first_place(key)
        return places

    def _place(self, key: bytes) -> int:
        common, numbers = self._numbers
        if not key.startswith(common):
            return -1
        number = _number(key[len(common) :][:WORD])
        place = bisect_left(numbers, number)
        if place == len(numbers) or numbers[place] != number:
            return -1
        end = bisect_right(numbers, number, place)
        if end - place > 1:
            place = bisect_left(self.keys, key, place, end)
        return place if place < end and self.keys[place] == key else -1

    def _places(self, keys: BinaryColumn) -> np.ndarray:
        """For each key the first place whose number is that of the key; -1 if there is none: int64 ``(n,)``."""
        common, numbers = self._numbers
        known, asked = np.asarray(numbers), _numbers_after(len(common), keys)
        if not len(known):
            return np.full(len(keys), -1)
        places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return np.where(known[places] == asked, places, -1)

    @cached_property
    def _numbers(self) -> tuple[bytes, memoryview]:
        """The beginning that all keys have; and of each key the next eight bytes, as a number in the same order."""
        keys = self.keys
        first, last = (keys[0], keys[-1]) if len(keys) else (b"", b"")
        length = next(
            (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
        )
        return first[:length], _numbers_after(length, keys).data


def rows_there(layer: RowLayer) -> tuple[BinaryColumn, BinaryColumn]:
    """Keys of a layer's rows, without those that were deleted, and the rows."""
    if isinstance(layer, Run):
        there = layer.there()
        return there.keys, there.rows
    rows = {key: row for key, row in layer.items() if row}
    return BinaryColumn.from_list(list(rows)), BinaryColumn.from_list(list(rows.values()))


def _numbers_after(length: int, keys: BinaryColumn) -> np.ndarray:
    """The eight bytes of each key after the first ``length``, padded with zeros, as numbers: uint64 ``(n,)``."""
    starts = np.minimum(keys.offsets[:-1] + length, keys.offsets[1:])
    flat = np.append(keys.flat, np.zeros(WORD, np.uint8))
    missing = 8 * np.maximum(WORD - (keys.offsets[1:] - starts), 0).astype(np.uint64)  # bits
    numbers = windows(flat, WORD)[starts].view(">u8").astype(np.uint64)
    kept = missing % np.uint64(64)  # a shift by all 64 bits is not defined
    return np.where(missing < 64, numbers >> kept << kept, np.uint64(0))


def merged(runs: Sequence[Run]) -> Run:
    """One run of several: of each key the row of the last run that has it."""
    runs = [run for run in runs if len(run)] or list(runs[:1])
    if len(runs) == 1:
        return runs[0]
    if (kernel := library.kernel()) is not None:
        return Run(*native_runs.merged(kernel, [(run.keys, run.rows) for run in runs]))
    keys, rows = (binary_column.concatenate(columns) for columns in zip(*((r.keys, r.rows) for r in runs), strict=True))
    order, differs = in_order(keys)
    lasts = order[np.append(differs, True)]
    return Run(keys.take(lasts), rows.take(lasts))


def found_over(
    runs: Sequence[Run], keys: BinaryColumn, find: Callable[[BinaryColumn], tuple[np.ndarray, BinaryColumn]]
) -> tuple[np.ndarray, BinaryColumn]:
    """The rows of keys in runs, or else those that are older.

    Args:
        runs: The newest first.
        find: Returns for each of some keys whether it has an older row, bool ``(n,)``; and these rows.

    Returns:
        For each key whether it has a row; and these rows.
    """
    columns, count = [], 0
    places, is_unknown = np.full(len(keys), -1), np.ones(len(keys), bool)
    for run in runs:
        at = run.places_of(keys)
        known = np.flatnonzero(is_unknown & (at >= 0))
        if len(known):
            rows = run.rows.take(at[known])
            places[known] = np.where(rows.lengths > 0, count + np.arange(len(rows)), -1)
            columns.append(rows)
            count += len(rows)
            is_unknown[known] = False
    if not columns:
        return find(keys)
    if len(unknown := np.flatnonzero(is_unknown)):
        there, older = find(keys.take(unknown))
        places[unknown[there]] = count + np.arange(len(older))
        columns.append(older)
    there = places >= 0
    return there, binary_column.concatenate(columns).take(places[there])


def _number(beginning: bytes) -> int:
    return int.from_bytes(beginning.ljust(WORD, b"\0"), "big")
