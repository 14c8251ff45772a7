"""Columns of byte strings, the form in which keys and rows move between Arrow, numpy and lists of bytes.

Nothing here loops over rows in Python, but over a few: one call of Arrow costs as much as hundreds of strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import InvalidRequest

WORD = 8
"""Size in bytes of the words that checksums are computed from."""

_FEW = 16
"""So many strings are separated faster without Arrow."""
COLUMN_BYTES_MAX = 2**31 - 1
_BINARY = pa.binary()
_INLINE_MAX = 12
_VIEW = np.dtype([("length", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("start", "<i4")])
_INLINE = np.dtype([("length", "<i4"), ("bytes", "V12")])
"""Arrow's views of a string of more than 12 bytes, and of a shorter one. No cast to ``binary`` reads the prefix."""


class BinaryColumn:
    """A column of byte strings without nulls.

    Attributes:
        flat: uint8, the strings in order; other bytes may precede the first and follow the last.
        offsets: int64 ``(n + 1,)``, where each string begins, and where the last one ends.
        width: Bytes of each string if all have the same width and it was known beforehand, else None.
    """

    __slots__ = ("flat", "offsets", "width")

    def __init__(self, flat: np.ndarray, offsets: np.ndarray, width: int | None = None) -> None:
        self.flat = flat
        self.offsets = offsets
        self.width = width

    @classmethod
    def from_matrix(cls, matrix: np.ndarray) -> BinaryColumn:
        """Column of the rows of a C-contiguous uint8 matrix ``(n, width)``, not copied."""
        rows, width = matrix.shape
        return cls(matrix.reshape(rows * width), np.arange(rows + 1) * width, width)

    @classmethod
    def from_arrow(cls, column: pa.Array) -> BinaryColumn:
        """Column of a ``binary`` or ``string`` array; the bytes are not copied."""
        _, offsets, data = column.buffers()
        if not len(column):
            return cls(np.zeros(0, np.uint8), np.zeros(1, np.int64))
        cuts = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
        return cls(np.frombuffer(data or b"", np.uint8), cuts)

    @classmethod
    def from_list(cls, strings: Sequence[bytes]) -> BinaryColumn:
        """Column of a list of byte strings."""
        offsets = np.zeros(len(strings) + 1, np.int64)
        np.fromiter(map(len, strings), np.int64, len(strings)).cumsum(out=offsets[1:])
        return cls(np.frombuffer(b"".join(strings), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        if number < 0:
            number += len(self)
        return self.flat[self.offsets[number] : self.offsets[number + 1]].tobytes()

    @property
    def lengths(self) -> np.ndarray:
        """Length of each string: int64 ``(n,)``."""
        return self.offsets[1:] - self.offsets[:-1]

    def matrix(self) -> np.ndarray:
        """The strings as rows of a matrix; only for columns of known width."""
        assert self.width is not None
        return self.flat[self.offsets[0] : self.offsets[-1]].reshape(len(self), self.width)

    def slice(self, start: int, stop: int) -> BinaryColumn:
        """The strings from ``start`` to ``stop`` (exclusive); they lie in order and are not copied."""
        return BinaryColumn(self.flat, self.offsets[start : stop + 1], self.width)

    def moved(self) -> BinaryColumn:
        """The same strings, not copied, the first at the beginning of ``flat``."""
        start, end = self.offsets[0], self.offsets[-1]
        return BinaryColumn(self.flat[start:end], self.offsets - start, self.width)

    def copied(self) -> BinaryColumn:
        """The same strings in memory of their own."""
        moved = self.moved()
        return BinaryColumn(moved.flat.copy(), moved.offsets, self.width)

    def without_empty(self) -> BinaryColumn:
        """The strings that are not empty."""
        there = self.lengths > 0
        return self if there.all() else BinaryColumn(self.flat, np.append(self.offsets[:-1][there], self.offsets[-1]))

    def to_arrow(self) -> pa.BinaryArray:
        """Convert to a ``binary`` array; the bytes are not copied.

        Raises:
            InvalidRequest: The strings are too many for one Arrow column.
        """
        if self.offsets[-1] > COLUMN_BYTES_MAX:
            raise InvalidRequest("One batch can't hold more than 2 GiB of a column; make it smaller.")
        cuts = pa.py_buffer(self.offsets.astype(np.int32))
        return pa.Array.from_buffers(_BINARY, len(self), [None, cuts, pa.py_buffer(self.flat)])

    def to_list(self) -> list[bytes]:
        """The strings as separate objects, the form that LMDB takes."""
        strings: list[bytes]
        if len(self) == 1:
            strings = [self.flat[self.offsets[0] : self.offsets[1]].tobytes()]
        elif self.width is not None:
            strings = self.matrix().view(f"V{self.width}").reshape(len(self)).tolist()
        elif len(self) <= _FEW:
            cuts = self.offsets.tolist()
            data, start = self.flat[cuts[0] : cuts[-1]].tobytes(), cuts[0]
            strings = [data[one - start : next - start] for one, next in pairwise(cuts)]
        else:
            strings = self.to_arrow().to_pylist()
        return strings

    def take(self, places: np.ndarray) -> BinaryColumn:
        """The strings at the given places, in that order."""
        if self.width is not None:
            return BinaryColumn.from_matrix(self.matrix()[places])
        return BinaryColumn.from_arrow(self.to_arrow().take(_arrow_of(places)))

    def words(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The strings as uint64 words, the last word of each padded with zeros.

        Returns:
            A matrix of words and None, if the column has a known width; else the words of all strings in order, and the
            first word of each string.
        """
        if self.width is not None:
            return _words(self.matrix()), None
        padded = join(self, word_padding(self.lengths))
        return padded.flat[: padded.offsets[-1]].view("<u8"), padded.offsets[:-1] // WORD


@dataclass(frozen=True, slots=True)
class Places:
    """Where byte strings lie in a buffer, in any order.

    Attributes:
        flat: uint8, the buffer.
        starts, ends: int64 ``(n,)``, where in it each string begins and ends.
        bytes_max: Limit of the length of each, if there is one.
    """

    flat: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    bytes_max: int | None = None

    @classmethod
    def of(cls, column: BinaryColumn) -> Places:
        """Those of a column's strings."""
        return cls(column.flat, column.offsets[:-1], column.offsets[1:])

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> np.ndarray:
        """Length of each string: int64 ``(n,)``."""
        return self.ends - self.starts

    def longest(self) -> int:
        """The length of the longest, or its limit."""
        return int(self.lengths.max(initial=0)) if self.bytes_max is None else self.bytes_max


def scalar(string: bytes) -> pa.BinaryScalar:
    """A string as a value of Arrow; ``pa.scalar`` imports pandas where there is one, in a third of a second."""
    return BinaryColumn.from_list([string]).to_arrow()[0]


EMPTY = scalar(b"")


def windows(flat: np.ndarray, width: int) -> np.ndarray:
    """At each byte of uint8 ``flat``, the ``width`` bytes from there; ends where fewer are left. No copy."""
    return np.ndarray((max(0, len(flat) - width + 1),), f"V{width}", flat, 0, (1,))


def gather(
    buffers: Sequence[np.ndarray], starts: np.ndarray, lengths: np.ndarray, which: np.ndarray | None = None
) -> BinaryColumn:
    """Copies strings from any places in any order; of known width if all have the same length and lie in one buffer.

    Args:
        buffers: uint8, each less than 2 GiB, with at least 12 bytes from the start of every string.
        starts, lengths: Integers ``(n,)``; every string is within its buffer.
        which: The buffer of each string; None for the first buffer.
    """
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
    if which is None and shortest == longest > 0:
        return _gather_matrix(buffers[0], starts, longest)
    views = np.zeros(len(starts), _VIEW)
    views["length"], views["start"] = lengths, starts
    if which is not None:
        views["buffer"] = which
    if shortest <= _INLINE_MAX:
        _put_inline(views, buffers)
    data = [pa.py_buffer(buffer) for buffer in buffers]
    column = pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *data])
    return BinaryColumn.from_arrow(column.cast(_BINARY))


def gather_padded(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> BinaryColumn | None:
    """Like :func:`gather`, with shorter strings padded with zeros to the width of the longest.

    Args:
        lengths: ``flat`` must reach at least the longest length past the start of the last string.

    Returns:
        None if the strings are not whole words, or if padding would more than double their bytes.
    """
    longest = int(lengths.max(initial=0))
    if not longest or (lengths & (WORD - 1)).any() or longest * len(lengths) > 2 * int(lengths.sum()):
        return None
    strings = _gather_matrix(flat, starts, longest)
    words = strings.matrix().view("<u8")
    for nth in range(int(lengths.min()) // WORD, longest // WORD):
        words[lengths <= nth * WORD, nth] = 0
    return strings


def slices(flat: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.BinaryArray:
    """Column of ``flat[start:end]`` for ranges that lie in order and do not overlap."""
    if len(starts) == 1:
        return _one(flat[starts[0] : ends[0]]).to_arrow()
    # The gaps between the ranges become strings of their own, which the take drops.
    bounds = np.zeros(2 * len(starts) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2] if len(starts) else 0
    return BinaryColumn(flat, bounds).to_arrow().take(_arrow_of(np.arange(0, 2 * len(starts), 2)))


def concatenate(columns: Sequence[BinaryColumn]) -> BinaryColumn:
    """The strings of columns, one column after the other; there is at least one."""
    flats = [column.flat[column.offsets[0] : column.offsets[-1]] for column in columns]
    lengths = np.concatenate([column.lengths for column in columns])
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return BinaryColumn(np.concatenate(flats), offsets)


def join(*columns: BinaryColumn) -> BinaryColumn:
    """Concatenates columns row by row."""
    if len(columns[0]) == 1:
        return _one(np.concatenate([column.flat[column.offsets[0] : column.offsets[1]] for column in columns]))
    return BinaryColumn.from_arrow(pc.binary_join_element_wise(*(column.to_arrow() for column in columns), EMPTY))


def word_padding(lengths: np.ndarray) -> BinaryColumn:
    """For strings of these lengths, the zeros that pad them to whole words."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    (-lengths & (WORD - 1)).cumsum(out=offsets[1:])
    return BinaryColumn(np.zeros(offsets[-1], np.uint8), offsets)


def _words(matrix: np.ndarray) -> np.ndarray:
    """Rows of a uint8 matrix as uint64 words, the last word of each padded with zeros."""
    rows, width = matrix.shape
    whole, more = divmod(width, WORD)
    if not more:
        return matrix.view("<u8")
    words = np.empty((rows, whole + 1), "<u8")
    if not whole:
        words[:] = 0
        words.view(np.uint8)[:, :width] = matrix
        return words
    words[:, :whole] = matrix[:, : whole * WORD].view("<u8")
    # Copying one word that ends with the row is faster than copying single bytes.
    words[:, whole] = matrix[:, width - WORD :].view("<u8")[:, 0] >> np.uint64((WORD - more) * WORD)
    return words


def _gather_matrix(flat: np.ndarray, starts: np.ndarray, width: int) -> BinaryColumn:
    return BinaryColumn.from_matrix(windows(flat, width)[starts].view(np.uint8).reshape(-1, width))


def _put_inline(views: np.ndarray, buffers: Sequence[np.ndarray]) -> None:
    for nth, buffer in enumerate(buffers):
        rows = np.flatnonzero((views["length"] <= _INLINE_MAX) & (views["buffer"] == nth))
        views.view(_INLINE)["bytes"][rows] = windows(buffer, _INLINE_MAX)[views["start"][rows]]


def _one(string: np.ndarray) -> BinaryColumn:
    return BinaryColumn(string, np.array([0, len(string)]))


def _arrow_of(places: np.ndarray) -> pa.Int64Array:
    """Places as Arrow has them; ``pa.array`` would import pandas, where that is installed."""
    numbers = np.ascontiguousarray(places, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
