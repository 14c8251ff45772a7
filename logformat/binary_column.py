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
_INLINE_MAX = 12
_VIEW = np.dtype([("length", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("start", "<i4")])
_INLINE = np.dtype([("length", "<i4"), ("bytes", "V12")])
"""Arrow's view of a string of more than 12 bytes, and of another. No cast to ``binary`` looks at the prefix."""


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

    def __getitem__(self, place: int) -> bytes:
        if place < 0:
            place += len(self)
        return self.flat[self.offsets[place] : self.offsets[place + 1]].tobytes()

    @property
    def lengths(self) -> np.ndarray:
        """int64 ``(n,)``."""
        return self.offsets[1:] - self.offsets[:-1]

    def matrix(self) -> np.ndarray:
        """The strings as rows of a matrix; for columns that know their width."""
        assert self.width is not None
        return self.flat[self.offsets[0] : self.offsets[-1]].reshape(len(self), self.width)

    def slice(self, start: int, stop: int) -> Octets:
        """The strings from ``start`` to ``stop`` (exclusive), which lie in order; no copy."""
        return Octets(self.flat, self.offsets[start : stop + 1], self.width)

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
            return _words(self.matrix()), None
        padded = join(self, word_padding(self.lengths))
        return padded.flat[: padded.offsets[-1]].view("<u8"), padded.offsets[:-1] // WORD


def windows(flat: np.ndarray, width: int) -> np.ndarray:
    """At each byte of uint8 ``flat`` the ``width`` bytes from there on, as far as there are so many; no copy."""
    return np.ndarray((max(0, len(flat) - width + 1),), f"V{width}", flat, 0, (1,))


def gather(
    buffers: Sequence[np.ndarray], starts: np.ndarray, lengths: np.ndarray, which: np.ndarray | None = None
) -> Octets:
    """Copies of strings that lie anywhere, in any order; of known width if all have the same and lie in one buffer.

    Args:
        buffers: uint8, each less than 2 GiB; behind the begin of every string there are at least 12 bytes.
        starts, lengths: Integers ``(n,)``; every string is within its buffer.
        which: The buffer of each; the first if None.
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
    return Octets.from_arrow(column.cast(_BINARY))


def gather_padded(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Octets | None:
    """Like :func:`gather`, with zeros behind the shorter strings so that all have the width of the longest.

    Args:
        lengths: Behind the begin of the last string there are as many bytes as the longest has.

    Returns:
        None if they are not made of whole words, or would take more than twice their bytes.
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


def _words(matrix: np.ndarray) -> np.ndarray:
    """Rows of a uint8 matrix as uint64 words, zeros added to the last one of each."""
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
    # A word that ends where the row does is copied faster than some bytes.
    words[:, whole] = matrix[:, width - WORD :].view("<u8")[:, 0] >> np.uint64((WORD - more) * WORD)
    return words


def _gather_matrix(flat: np.ndarray, starts: np.ndarray, width: int) -> Octets:
    return Octets.from_matrix(windows(flat, width)[starts].view(np.uint8).reshape(-1, width))


def _put_inline(views: np.ndarray, buffers: Sequence[np.ndarray]) -> None:
    for nth, buffer in enumerate(buffers):
        rows = np.flatnonzero((views["length"] <= _INLINE_MAX) & (views["buffer"] == nth))
        views.view(_INLINE)["bytes"][rows] = windows(buffer, _INLINE_MAX)[views["start"][rows]]


def _one(string: np.ndarray) -> Octets:
    return Octets(string, np.array([0, len(string)]))
