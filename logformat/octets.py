"""Columns of byte strings: how keys and rows travel between Arrow, numpy and lists of bytes.

Nothing here loops over rows in Python. A single string needs no Arrow, whose calls cost as much as for hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.errors import InvalidRequest

WORD = 8
"""Bytes of the words that checksums are made of."""

_BYTES_MAX = 2**31 - 1
EMPTY = pa.scalar(b"", pa.binary())
_BINARY = pa.binary()


class Octets:
    """A column of byte strings, none of them null.

    Attributes:
        flat: uint8, the strings one behind the other; other bytes may stand before the first and behind the last.
        offsets: int64 ``(n + 1,)``, where they are cut.
        width: Bytes of each if all have the same and it was known beforehand, else None.
    """

    __slots__ = ("flat", "offsets", "width")

    def __init__(self, flat: np.ndarray, offsets: np.ndarray, width: int | None = None) -> None:
        self.flat = flat
        self.offsets = offsets
        self.width = width

    @classmethod
    def from_matrix(cls, matrix: np.ndarray) -> Octets:
        """Rows of a C-contiguous uint8 matrix ``(n, width)``; no copy."""
        rows, width = matrix.shape
        return cls(matrix.reshape(rows * width), np.arange(rows + 1) * width, width)

    @classmethod
    def from_arrow(cls, column: pa.Array) -> Octets:
        """A ``binary`` or ``string`` column; no copy of the bytes."""
        _, offsets, data = column.buffers()
        if not len(column):
            return cls(np.zeros(0, np.uint8), np.zeros(1, np.int64))
        cuts = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
        return cls(np.frombuffer(data or b"", np.uint8), cuts)

    @classmethod
    def from_list(cls, strings: Sequence[bytes]) -> Octets:
        """A list of byte strings."""
        offsets = np.zeros(len(strings) + 1, np.int64)
        np.fromiter(map(len, strings), np.int64, len(strings)).cumsum(out=offsets[1:])
        return cls(np.frombuffer(b"".join(strings), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int64 ``(n,)``."""
        return self.offsets[1:] - self.offsets[:-1]

    def matrix(self) -> np.ndarray:
        """The strings as rows of a matrix; for columns that know their width."""
        assert self.width is not None
        return self.flat[self.offsets[0] : self.offsets[-1]].reshape(len(self), self.width)

    def without_empty(self) -> Octets:
        """Those that have any bytes."""
        there = self.lengths > 0
        return self if there.all() else Octets(self.flat, np.append(self.offsets[:-1][there], self.offsets[-1]))

    def to_arrow(self) -> pa.BinaryArray:
        """A ``binary`` column; no copy of the bytes.

        Raises:
            InvalidRequest: They are too many for one column of Arrow.
        """
        if self.offsets[-1] > _BYTES_MAX:
            raise InvalidRequest("One batch can't hold more than 2 GiB of a column; make it smaller.")
        cuts = pa.py_buffer(self.offsets.astype(np.int32))
        return pa.Array.from_buffers(_BINARY, len(self), [None, cuts, pa.py_buffer(self.flat)])

    def to_list(self) -> list[bytes]:
        """The strings, each an object of its own: the form LMDB takes."""
        strings: list[bytes]
        if len(self) == 1:
            strings = [self.flat[self.offsets[0] : self.offsets[1]].tobytes()]
        elif self.width is not None:
            strings = self.matrix().view(f"V{self.width}").reshape(len(self)).tolist()
        else:
            strings = self.to_arrow().to_numpy(zero_copy_only=False).tolist()
        return strings

    def take(self, places: np.ndarray) -> Octets:
        """The strings at some places, in their order."""
        if self.width is not None:
            return Octets.from_matrix(self.matrix()[places])
        return Octets.from_arrow(self.to_arrow().take(pa.array(places)))

    def words(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The strings as uint64 words, zeros added to the last one of each.

        Returns:
            A matrix of words and None, if all strings have one width; else the words of all, one behind the other, and
            at which word each string begins.
        """
        if self.width is not None:
            padding = -self.width % WORD
            matrix = self.matrix()
            if padding:
                matrix = np.zeros((len(self), self.width + padding), np.uint8)
                matrix[:, : self.width] = self.matrix()
            return matrix.view("<u8"), None
        padded = join(self, word_padding(self.lengths))
        return padded.flat[: padded.offsets[-1]].view("<u8"), padded.offsets[:-1] // WORD


def slices(flat: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.BinaryArray:
    """Column of ``flat[start:end]``; ranges lie in order and do not overlap."""
    if len(starts) == 1:
        return _one(flat[starts[0] : ends[0]]).to_arrow()
    # The gaps between the ranges become strings of their own, which the take leaves behind.
    bounds = np.zeros(2 * len(starts) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2] if len(starts) else 0
    return Octets(flat, bounds).to_arrow().take(pa.array(np.arange(0, 2 * len(starts), 2)))


def join(*columns: Octets) -> Octets:
    """Row by row, the byte strings of columns one behind the other."""
    if len(columns[0]) == 1:
        return _one(np.concatenate([column.flat[column.offsets[0] : column.offsets[1]] for column in columns]))
    return Octets.from_arrow(pc.binary_join_element_wise(*(column.to_arrow() for column in columns), EMPTY))


def word_padding(lengths: np.ndarray) -> Octets:
    """For strings of these lengths, the zeros up to the next whole word."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    (-lengths & (WORD - 1)).cumsum(out=offsets[1:])
    return Octets(np.zeros(offsets[-1], np.uint8), offsets)


def _one(string: np.ndarray) -> Octets:
    return Octets(string, np.array([0, len(string)]))
