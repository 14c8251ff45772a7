"""Rows read from their pages as a whole; LMDB's cursor makes two Python objects of each row.

* A commit changes no page of the one before it, and none is used again while a reader of that commit has its slot: what
  is read while a read transaction is held is of its moment.
* Pages are read with ``pread``, and nothing in them is believed: every place is held against its page before it is
  used, nodes fill their page, and keys rise; else it is ``CorruptData``. Rows have checksums of their own.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from kvstore.errors import CorruptData
from kvstore.pages import BIG, BRANCH, DEPTH_MAX, HEAD, LEAF, NODE, NOWHERE, OVERFLOW, Tree
from logformat.binary_column import Octets, gather, gather_padded, windows

CHUNK_BYTES = 8 << 20
"""Bytes of the values of one chunk; or one value, if it is larger. Of more, memory would be faulted in for each."""
_PAGES_BYTES = 16 << 20
_VALUE_BYTES_MAX = 2**31 - 1
_FULL = 0.9  # of a chunk: how full leaves are differs, and a chunk too many costs more than smaller ones
_HEAD = np.dtype([("number", "<u8"), ("unused", "<u2"), ("kind", "<u2"), ("lower", "<u2"), ("upper", "<u2")])
_BRANCHES = 64
"""Branches read at once."""
_NUMBER_BYTES = 8
"""Of the number of a page, where a value has pages of its own."""
assert _HEAD.itemsize == HEAD.size


class Leaves:
    """A tree, as a read transaction found it.

    Args:
        descriptor: LMDB's file.
        page_bytes: Bytes of a page.
        check_held: Called after pages were read; raises if the transaction is not held any more.
    """

    def __init__(self, descriptor: int, page_bytes: int, tree: Tree, check_held: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._page_bytes = page_bytes
        self._tree = tree
        self._check_held = check_held
        self._file_pages = os.fstat(descriptor).st_size // page_bytes

    def rows(self, chunk: int, start: bytes, stop: bytes | None) -> Iterator[tuple[Octets, Octets]]:
        """Keys and values from ``start`` to ``stop`` (exclusive), in key order.

        Args:
            chunk: Rows at a time; or fewer.

        Raises:
            CorruptData: A page is damaged.
            OSError: The disk refused.
        """
        last = b""  # no key is empty
        for numbers in self._leaves(chunk, start, stop):
            flat, places = self._read(numbers, np.ones_like(numbers))
            nodes = self._nodes(flat, places, numbers, LEAF)
            keys = gather((flat,), nodes.keys, nodes.key_bytes)
            _check_order(last, keys)
            last = keys[-1]
            low, high = bisect_left(keys, start), len(keys) if stop is None else bisect_left(keys, stop)
            ends = nodes.value_bytes[:high].cumsum()
            while low < high:
                enough = int(np.searchsorted(ends, ends[low] - nodes.value_bytes[low] + CHUNK_BYTES, "right"))
                until = min(max(enough, low + 1), low + chunk, high)
                yield keys.slice(low, until), self._values(flat, nodes, slice(low, until))
                low = until

    def _leaves(self, chunk: int, start: bytes, stop: bytes | None) -> Iterator[np.ndarray]:
        """Numbers of the leaves between two keys, as many at a time as hold about ``chunk`` rows."""
        tree = self._tree
        if tree.root == NOWHERE:
            return
        if not 1 <= tree.depth <= DEPTH_MAX or tree.root >= self._file_pages:
            raise _damaged("a tree can't be so", depth=tree.depth, root=tree.root)
        _, leaves, _, entries = tree.counts
        enough = int(_FULL * chunk * leaves / max(entries, 1))
        enough = max(1, min(enough, _PAGES_BYTES // self._page_bytes))
        waiting = np.zeros(0, np.int64)
        for numbers in self._below(np.array([tree.root], np.int64), 1, start, stop):
            waiting = np.concatenate([waiting, numbers])
            while len(waiting) >= enough:
                yield waiting[:enough]
                waiting = waiting[enough:]
        if len(waiting):
            yield waiting

    def _below(self, numbers: np.ndarray, depth: int, start: bytes, stop: bytes | None) -> Iterator[np.ndarray]:
        """Numbers of the leaves under pages of one level, those of a few branches at a time."""
        if depth == self._tree.depth:
            yield numbers
            return
        for first in range(0, len(numbers), _BRANCHES):
            below = self._children(numbers[first : first + _BRANCHES], start, stop)
            yield from self._below(below, depth + 1, start, stop)

    def _children(self, numbers: np.ndarray, start: bytes, stop: bytes | None) -> np.ndarray:
        """Numbers of the pages under branches, which follow each other, that may hold keys between two."""
        flat, places = self._read(numbers, np.ones_like(numbers))
        nodes = self._nodes(flat, places, numbers, BRANCH)
        # What the first key of a page says LMDB does not look at.
        looked_at = np.ones(len(nodes.keys), bool)
        looked_at[nodes.firsts] = False
        keys = gather((flat,), nodes.keys[looked_at], nodes.key_bytes[looked_at])
        _check_order(b"", keys)
        in_first = len(keys) if len(numbers) == 1 else int(nodes.firsts[1]) - 1
        low = bisect_right(keys, start, 0, in_first)
        high = len(nodes.keys)
        if stop is not None:
            before_last = int(nodes.firsts[-1]) - (len(numbers) - 1)
            high = int(nodes.firsts[-1]) + 1 + bisect_left(keys, stop, before_last) - before_last
        # One more on either side: these keys have no checksum, but as they rise, one that is wrong is so by one page.
        return nodes.children[max(0, low - 1) : high + 1]

    def _nodes(self, flat: np.ndarray, places: np.ndarray, numbers: np.ndarray, kind: int) -> _Nodes:
        """Nodes of pages, page by page in the order given: at least one of each.

        Args:
            flat, places: Bytes, and where in them each page begins.
            numbers: Of the pages.
        """
        size = self._page_bytes
        heads = windows(flat, HEAD.size)[places].view(_HEAD)
        lower, upper = heads["lower"].astype(np.int64), heads["upper"].astype(np.int64)
        right = (heads["number"] == numbers) & (heads["kind"] == kind) & (lower & 1 == 0)
        right &= (HEAD.size < lower) & (lower <= upper) & (upper <= size)
        if not right.all():
            raise _damaged("it is another one", page=int(numbers[np.argmin(right)]))
        counts = (lower - HEAD.size) >> 1
        firsts = counts.cumsum() - counts
        pointers = np.arange(counts.sum()) + ((places + HEAD.size >> 1) - firsts).repeat(counts)
        in_page = flat.view("<u2").take(pointers)
        highest, any_odd = int(in_page.max()), int(np.bitwise_or.reduce(in_page)) & 1
        if any_odd or highest > size - NODE.size or (np.minimum.reduceat(in_page, firsts) < upper).any():
            raise _damaged("a node is outside of it", pages=f"{numbers.min()}..{numbers.max()}")
        nodes = in_page + places.repeat(counts)
        heads_of_nodes = windows(flat, NODE.size)[nodes].view("<i8")
        key_bytes = heads_of_nodes >> 48 & 0xFFFF
        value_bytes = heads_of_nodes & 0xFFFFFFFF
        keys = nodes + NODE.size
        values = keys + key_bytes
        big = np.zeros(len(nodes), bool)
        ends = values
        if kind == LEAF:
            flags = heads_of_nodes >> 32 & 0xFFFF
            if int(flags.max()) > BIG:
                raise _damaged("a node is of another kind", pages=f"{numbers.min()}..{numbers.max()}")
            big = flags == BIG
            ends = values + value_bytes
            ends[big] = values[big] + _NUMBER_BYTES
        # Together they fill what they are said to, and as keys rise no two are one.
        filled = ends - nodes
        filled += filled & 1
        if int((in_page + filled).max()) > size or (np.add.reduceat(filled, firsts) != size - upper).any():
            raise _damaged("nodes are not one behind the other", pages=f"{numbers.min()}..{numbers.max()}")
        return _Nodes(firsts, keys, key_bytes, values, value_bytes, big, heads_of_nodes & 0xFFFFFFFFFFFF)

    def _values(self, flat: np.ndarray, nodes: _Nodes, some: slice) -> Octets:
        """Values of some nodes of leaves, those in pages of their own among them."""
        starts, lengths, big = nodes.values[some], nodes.value_bytes[some], nodes.big[some]
        if not big.any():
            padded = gather_padded(flat, starts, lengths)
            return gather((flat,), starts, lengths) if padded is None else padded
        if lengths.max() > _VALUE_BYTES_MAX:
            raise _damaged("a value is larger than any", bytes=int(lengths.max()))
        firsts = windows(flat, _NUMBER_BYTES)[starts[big]].view("<u8")
        counts = -(-(HEAD.size + lengths[big]) // self._page_bytes)
        apart, places = self._read(firsts, counts)
        heads = windows(apart, HEAD.size)[places].view(_HEAD)
        right = (heads["number"] == firsts) & (heads["kind"] == OVERFLOW)
        right &= heads["lower"] + (heads["upper"].astype(np.int64) << 16) == counts
        if not right.all():
            raise _damaged("it does not hold the value", page=int(firsts[np.argmin(right)]))
        starts = starts.copy()
        starts[big] = places + HEAD.size
        return gather((flat, apart), starts, lengths, big)

    def _read(self, firsts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Runs of pages, in the order of the file: those that follow each other there are read at once.

        Args:
            firsts, counts: Number of each run's first page, and how many they are.

        Returns:
            Their bytes, behind them as many as a page has, and where in them each run begins.
        """
        if (firsts >= self._file_pages).any() or (firsts.astype(np.int64) + counts > self._file_pages).any():
            raise _damaged("it is beyond the end of the file", page=int(firsts.max()))
        order = np.argsort(firsts)
        begins, lengths = firsts[order].astype(np.int64), counts[order]
        stops = lengths.cumsum() * self._page_bytes
        places = np.empty_like(stops)
        places[order] = stops - lengths * self._page_bytes
        flat = np.empty(int(stops[-1]) + self._page_bytes, np.uint8)
        target = flat.data
        lasts = np.append(np.flatnonzero(begins[1:] != begins[:-1] + lengths[:-1]), len(stops) - 1)
        ends = (begins + lengths)[lasts] * self._page_bytes
        at = 0
        for stop, end in zip(stops[lasts].tolist(), ends.tolist(), strict=True):
            while at < stop:
                got = os.preadv(self._descriptor, [target[at:stop]], end - (stop - at))
                if not got:
                    raise _damaged("it is beyond the end of the file", place=end)
                at += got
        self._check_held()
        return flat, places


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes of pages; all arrays int64 ``(n,)`` but ``big``, which is bool; places are bytes from the first page's.

    Attributes:
        firsts: Which node is the first of each page.
        values: Where each value begins; of one that has pages of its own, where the number of the first one stands.
        children: Of branches, the pages below.
    """

    firsts: np.ndarray
    keys: np.ndarray
    key_bytes: np.ndarray
    values: np.ndarray
    value_bytes: np.ndarray
    big: np.ndarray
    children: np.ndarray


def _check_order(last: bytes, keys: Octets) -> None:
    column = keys.to_arrow()
    rise = pc.less(column.slice(0, max(0, len(column) - 1)), column.slice(1))
    if len(keys) and (keys[0] <= last or rise.false_count):
        raise _damaged("keys do not rise", key=keys[0].hex())


def _damaged(reason: str, **where: object) -> CorruptData:
    return CorruptData("A page of an index is damaged; run `kvstore check`.", reason=reason, **where)
