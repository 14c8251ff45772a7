"""The rows every store is given: keys from a permutation, random values, everything from one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Shape:
    """What rows look like.

    Attributes:
        key: Names of the key's columns.
        columns: For numbers that identify keys, the columns of rows with these keys.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    columns: Callable[[np.ndarray, np.random.Generator], list[pa.Array]]


class Rows:
    """Batches of a table of ``count`` rows."""

    def __init__(self, count: int, seed: int = 1, shape: Shape | None = None) -> None:
        self.count = count
        self.shape = shape or NARROW
        self._random = np.random.default_rng(seed)

    def inserts(self, batch_rows: int) -> list[pa.RecordBatch]:
        """Every row once, in random order of keys."""
        keys = self._random.permutation(self.count)
        return [self.batch(keys[first : first + batch_rows]) for first in range(0, self.count, batch_rows)]

    def updates(self, batch_rows: int, batches: int) -> list[pa.RecordBatch]:
        """New values for random rows, each at most once in a batch."""
        size = min(batch_rows, self.count)
        return [self.batch(self._random.choice(self.count, size, replace=False)) for _ in range(batches)]

    def keys(self, count: int) -> list[int]:
        """Some keys that are there, of a shape whose keys are numbers."""
        chosen: list[int] = self._random.choice(self.count, min(count, self.count), replace=False).tolist()
        return chosen

    def batch(self, keys: np.ndarray) -> pa.RecordBatch:
        """Rows with these keys and random values."""
        return pa.RecordBatch.from_arrays(self.shape.columns(keys, self._random), schema=self.shape.schema)


def _words(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pa.array(np.char.add(prefix, numbers.astype(str)))


_VALUES = [
    pa.field("a", pa.int32()),
    pa.field("b", pa.float64()),
    pa.field("c", pa.int64()),
    pa.field("s", pa.string()),
]


def _values(count: int, random: np.random.Generator) -> list[pa.Array]:
    return [
        pa.array(random.integers(0, 1000, count), pa.int32()),
        pa.array(random.random(count)),
        pa.array(random.integers(0, 1 << 40, count)),
        _words("name-", random.integers(0, 100_000, count)),
    ]


SCHEMA = pa.schema([pa.field("k", pa.int64(), False), *_VALUES])
NARROW = Shape(
    "five columns", SCHEMA, ("k",), lambda keys, random: [pa.array(keys, pa.int64()), *_values(len(keys), random)]
)

_URL = "https://example.com/item/"


def _urls(keys: np.ndarray) -> pa.Array:
    """Strings of 40 bytes, the first 25 of them all the same."""
    return _words(_URL, np.char.zfill(keys.astype(str), 40 - len(_URL)))


STRING_KEYS = Shape(
    "a string of 40 bytes",
    pa.schema([pa.field("k", pa.string(), False), *_VALUES]),
    ("k",),
    lambda keys, random: [_urls(keys), *_values(len(keys), random)],
)
COMPOSITE_KEYS = Shape(
    "a string and an int64",
    pa.schema([pa.field("customer", pa.string(), False), pa.field("k", pa.int64(), False), *_VALUES]),
    ("customer", "k"),
    lambda keys, random: [
        _words("customer-", keys % 1000),
        pa.array(keys, pa.int64()),
        *_values(len(keys), random),
    ],
)

_WIDE_TYPES = [pa.int64(), pa.float64(), pa.int32(), pa.int64(), pa.string(), pa.bool_(), pa.float64()] * 7


def _wide(keys: np.ndarray, random: np.random.Generator) -> list[pa.Array]:
    count = len(keys)
    made: dict[pa.DataType, Callable[[], pa.Array]] = {
        pa.int64(): lambda: pa.array(random.integers(0, 1 << 40, count)),
        pa.int32(): lambda: pa.array(random.integers(0, 1000, count), pa.int32()),
        pa.float64(): lambda: pa.array(random.random(count)),
        pa.bool_(): lambda: pa.array(random.random(count) < 0.5),
        pa.string(): lambda: _words("name-", random.integers(0, 100_000, count)),
    }
    return [pa.array(keys, pa.int64()), *(made[kind]() for kind in _WIDE_TYPES)]


WIDE = Shape(
    "50 columns",
    pa.schema([pa.field("k", pa.int64(), False), *(pa.field(f"c{nth}", kind) for nth, kind in enumerate(_WIDE_TYPES))]),
    ("k",),
    _wide,
)

_ITEM = pa.struct([pa.field("name", pa.string()), pa.field("count", pa.int32()), pa.field("price", pa.float64())])


def _nested(keys: np.ndarray, random: np.random.Generator) -> list[pa.Array]:
    """Orders of none to four items."""
    lengths = random.integers(0, 5, len(keys))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    items = pa.StructArray.from_arrays(
        [
            _words("item-", random.integers(0, 10_000, total)),
            pa.array(random.integers(1, 10, total), pa.int32()),
            pa.array(random.random(total)),
        ],
        fields=list(_ITEM),
    )
    return [
        pa.array(keys, pa.int64()),
        pa.array(random.integers(0, 1 << 40, len(keys))),
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items),
    ]


NESTED = Shape(
    "a list of structs",
    pa.schema([pa.field("k", pa.int64(), False), pa.field("a", pa.int64()), pa.field("items", pa.list_(_ITEM))]),
    ("k",),
    _nested,
)
