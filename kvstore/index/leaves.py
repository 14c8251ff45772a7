"""Bulk reads of rows from LMDB's pages; LMDB's cursor would create two Python objects for each row.

* A commit changes no page of the commit before it, and no page is reused while a reader of its commit has a slot: reads
  within a read transaction see one consistent state.
* Pages are read with ``pread`` and never trusted: every position is checked against its page before use, nodes must
  fill their page, and keys must ascend; otherwise ``CorruptData`` is raised. Rows have their own checksums.
* The native kernel reads leaves and finds their rows where it can. What it can't, and damage, is for this module.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from kvstore.disk.pages import BIG, BRANCH, DEPTH_MAX, HEAD, LEAF, NODE, NOWHERE, OVERFLOW, Tree
from kvstore.errors import CorruptData
from kvstore.index.found_rows import FoundRows, PlacedRows
from logformat.binary_column import BinaryColumn, gather, gather_padded, windows

if TYPE_CHECKING:
    from kvstore.kernel.leaves import LeafReader

CHUNK_BYTES = 8 << 20
"""Limit in bytes of a chunk's values, or one larger value. Larger chunks would page-fault new memory each time."""
_PAGES_BYTES = 16 << 20
_NATIVE_PAGES_BYTES = 3 << 20
"""Limit of leaves read at once; the kernel reads them several times, and fewer stay in the processor's cache."""
_VALUE_BYTES_MAX = 2**31 - 1
_FULL = 0.9  # of a chunk: leaves differ in fill, and one extra chunk costs more than smaller chunks
_HEAD = np.dtype([("number", "<u8"), ("unused", "<u2"), ("kind", "<u2"), ("lower", "<u2"), ("upper", "<u2")])
_BRANCHES = 64
"""Number of branches read at once."""
_NUMBER_BYTES = 8
"""Size of a page number, stored in place of a value that has its own pages."""
assert _HEAD.itemsize == HEAD.size


@dataclass(frozen=True, slots=True)
class PageRun:
    """Consecutive pages of one level of a tree.

    Attributes:
        first, last: The first and the last key to look for in them.
        numbers: Numbers of the pages, int64 ``(n,)``; at least one.
        cuts: Keys at which the pages after the first begin, ``n - 1``; they rise between ``first`` and ``last``.
        level: Level of the pages; that of the root is 1.
        leaves: Approximate number of leaves at or below the pages; 1 for one leaf.
    """

    first: bytes
    last: bytes
    numbers: np.ndarray
    cuts: BinaryColumn
    level: int
    leaves: float


class Leaves:
    """The tree of an index, as of a read transaction.

    Args:
        descriptor: Descriptor of LMDB's file.
        page_bytes: Size of a page.
        check_held: Called after each read of pages; raises if the transaction is no longer open.
    """

    def __init__(self, descriptor: int, page_bytes: int, tree: Tree, check_held: Callable[[], object]) -> None:
        self._descriptor = descriptor
        self._page_bytes = page_bytes
        self._tree = tree
        self._check_held = check_held
        self._file_pages = os.fstat(descriptor).st_size // page_bytes

    def found(self, chunk: int, start: bytes, stop: bytes | None) -> Iterator[FoundRows]:
        """Rows from ``start`` to ``stop`` (exclusive), in key order.

        Args:
            chunk: Maximum number of rows at a time.

        Raises:
            CorruptData: A page is damaged.
            OSError: The disk failed.
        """
        from kvstore.kernel import library
        from kvstore.kernel.leaves import LeafReader

        last = b""  # no key is empty
        kernel = library.kernel()
        pages_max = self._pages_max(chunk, _PAGES_BYTES if kernel is None else _NATIVE_PAGES_BYTES)
        reader = None if kernel is None else LeafReader(kernel, self._page_bytes, pages_max)
        buffer = None if reader is None else np.empty((pages_max + 1) * self._page_bytes, np.uint8)
        for numbers in self._leaves(pages_max, start, stop):
            flat, places = self.read(numbers, np.ones_like(numbers), reader, buffer)
            rows: PlacedRows | _NodeRows | None = None
            if reader is not None and (native := reader.find(flat, places, numbers, last)) is not None:
                rows = PlacedRows(flat, self._page_bytes, *native)
            if rows is None:
                nodes = self._nodes(flat, places, numbers, LEAF)
                rows = _NodeRows(self, flat, nodes)
                _check_order(last, rows.keys)
            last = rows[len(rows) - 1]
            low, high = bisect_left(rows, start), len(rows) if stop is None else bisect_left(rows, stop)
            lengths = rows.value_bytes()[:high]
            ends = lengths.cumsum()
            while low < high:
                enough = int(np.searchsorted(ends, ends[low] - lengths[low] + CHUNK_BYTES, "right"))
                until = min(max(enough, low + 1), low + chunk, high)
                yield rows.some(low, until)
                low = until

    def run_between(self, first: bytes, last: bytes) -> PageRun:
        """The root as a run; the tree has both keys."""
        self._check_root()
        return self._run(first, last, np.array([self._tree.root], np.int64), BinaryColumn.from_list([]), 1)

    def divided(self, run: PageRun, parts: int) -> list[PageRun]:
        """A run divided into at most ``parts`` runs, each beginning at the last key of the one before; a leaf as it is.

        Raises:
            CorruptData: A page is damaged.
            OSError: The disk failed.
        """
        while len(run.numbers) == 1 and run.level < self._tree.depth:
            run = self._below_run(run)
        pages = len(run.numbers)
        ends = sorted({pages * part // parts for part in range(1, parts + 1)} - {0})
        keys = [run.first, *(run.cuts[end - 1] for end in ends[:-1]), run.last]
        return [
            self._run(first, last, run.numbers[begin:end], run.cuts.slice(begin, end - 1), run.level)
            for (first, last), (begin, end) in zip(pairwise(keys), pairwise([0, *ends]), strict=True)
        ]

    def _below_run(self, run: PageRun) -> PageRun:
        """The pages below a run of one branch that may hold keys of it."""
        flat, places = self.read(run.numbers, np.ones_like(run.numbers))
        nodes = self._nodes(flat, places, run.numbers, BRANCH)
        # LMDB ignores the first key of a branch page.
        keys = gather((flat,), nodes.keys[1:], nodes.key_bytes[1:])
        _check_order(b"", keys)
        low = bisect_right(keys, run.first)
        high = bisect_left(keys, run.last, low)
        return self._run(run.first, run.last, nodes.children[low : high + 1], keys.slice(low, high), run.level + 1)

    def _run(self, first: bytes, last: bytes, numbers: np.ndarray, cuts: BinaryColumn, level: int) -> PageRun:
        depth, leaves = self._tree.depth, self._tree.counts[1]
        below = float(leaves ** ((depth - level) / max(1, depth - 1)))  # all pages taken to be equally full
        return PageRun(first, last, numbers, cuts, level, len(numbers) * below)

    def _pages_max(self, chunk: int, limit: int) -> int:
        """How many leaves have about ``chunk`` rows, and at most ``limit`` bytes."""
        _, leaves, _, entries = self._tree.counts
        enough = int(_FULL * chunk * leaves / max(entries, 1))
        return max(1, min(enough, limit // self._page_bytes))

    def _leaves(self, enough: int, start: bytes, stop: bytes | None) -> Iterator[np.ndarray]:
        """Numbers of the leaves between two keys, in groups of at most ``enough``."""
        tree = self._tree
        if tree.root == NOWHERE:
            return
        self._check_root()
        waiting = np.zeros(0, np.int64)
        for numbers in self._below(np.array([tree.root], np.int64), 1, start, stop):
            waiting = np.concatenate([waiting, numbers])
            while len(waiting) >= enough:
                yield waiting[:enough]
                waiting = waiting[enough:]
        if len(waiting):
            yield waiting

    def _check_root(self) -> None:
        tree = self._tree
        if not 1 <= tree.depth <= DEPTH_MAX or tree.root >= self._file_pages:
            raise _damaged("a tree has an impossible depth or root", depth=tree.depth, root=tree.root)

    def _below(self, numbers: np.ndarray, depth: int, start: bytes, stop: bytes | None) -> Iterator[np.ndarray]:
        """Numbers of the leaves below pages of one level, those of a few branches at a time."""
        if depth == self._tree.depth:
            yield numbers
            return
        for first in range(0, len(numbers), _BRANCHES):
            below = self._children(numbers[first : first + _BRANCHES], start, stop)
            yield from self._below(below, depth + 1, start, stop)

    def _children(self, numbers: np.ndarray, start: bytes, stop: bytes | None) -> np.ndarray:
        """Numbers of the pages below consecutive branches that may hold keys of the range."""
        flat, places = self.read(numbers, np.ones_like(numbers))
        nodes = self._nodes(flat, places, numbers, BRANCH)
        # LMDB ignores the first key of a branch page.
        looked_at = np.ones(len(nodes.keys), bool)
        looked_at[nodes.firsts] = False
        keys = gather((flat,), nodes.keys[looked_at], nodes.key_bytes[looked_at])
        _check_order(b"", keys)
        # The branch above gives one page too many, so the range may begin in any of these.
        not_after = bisect_right(keys, start)
        low = int(np.flatnonzero(looked_at)[not_after - 1]) if not_after else 0
        high = len(nodes.keys)
        if stop is not None:
            before_last = int(nodes.firsts[-1]) - (len(numbers) - 1)
            high = int(nodes.firsts[-1]) + 1 + bisect_left(keys, stop, before_last) - before_last
        # One more page on either side: these keys have no checksum, but they ascend, so a wrong key is off by one page.
        return nodes.children[max(0, low - 1) : high + 1]

    def _nodes(self, flat: np.ndarray, places: np.ndarray, numbers: np.ndarray, kind: int) -> _Nodes:
        """Nodes of pages, page by page in the given order; each page has at least one.

        Args:
            flat, places: The bytes, and where in them each page begins.
            numbers: Numbers of the pages.
        """
        size = self._page_bytes
        heads = windows(flat, HEAD.size)[places].view(_HEAD)
        lower, upper = heads["lower"].astype(np.int64), heads["upper"].astype(np.int64)
        right = (heads["number"] == numbers) & (heads["kind"] == kind) & (lower & 1 == 0)
        right &= (HEAD.size < lower) & (lower <= upper) & (upper <= size)
        if not right.all():
            raise _damaged("it has another number or kind", page=int(numbers[np.argmin(right)]))
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
                raise _damaged("a node has an unknown kind", pages=f"{numbers.min()}..{numbers.max()}")
            big = flags == BIG
            ends = values + value_bytes
            ends[big] = values[big] + _NUMBER_BYTES
        # Nodes exactly fill their part of the page; as keys ascend, no two nodes are the same.
        filled = ends - nodes
        filled += filled & 1
        if int((in_page + filled).max()) > size or (np.add.reduceat(filled, firsts) != size - upper).any():
            raise _damaged("nodes overlap or leave gaps", pages=f"{numbers.min()}..{numbers.max()}")
        return _Nodes(firsts, keys, key_bytes, values, value_bytes, big, heads_of_nodes & 0xFFFFFFFFFFFF)

    def values(self, flat: np.ndarray, nodes: _Nodes, some: slice) -> BinaryColumn:
        """Values of some nodes of leaves, including values that have their own pages."""
        starts, lengths, big = nodes.values[some], nodes.value_bytes[some], nodes.big[some]
        if not big.any():
            padded = gather_padded(flat, starts, lengths)
            return gather((flat,), starts, lengths) if padded is None else padded
        if lengths.max() > _VALUE_BYTES_MAX:
            raise _damaged("a value is larger than the limit", bytes=int(lengths.max()))
        firsts = windows(flat, _NUMBER_BYTES)[starts[big]].view("<u8")
        counts = -(-(HEAD.size + lengths[big]) // self._page_bytes)
        apart, places = self.read(firsts, counts)
        heads = windows(apart, HEAD.size)[places].view(_HEAD)
        right = (heads["number"] == firsts) & (heads["kind"] == OVERFLOW)
        # A value that is put twice in a transaction, shorter the second time, keeps its pages.
        right &= heads["lower"] + (heads["upper"].astype(np.int64) << 16) >= counts
        if not right.all():
            raise _damaged("it does not hold the value", page=int(firsts[np.argmin(right)]))
        starts = starts.copy()
        starts[big] = places + HEAD.size
        return gather((flat, apart), starts, lengths, big)

    def read(
        self,
        firsts: np.ndarray,
        counts: np.ndarray,
        reader: LeafReader | None = None,
        buffer: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read runs of pages in file order; adjacent runs are read at once.

        Args:
            firsts, counts: First page and number of pages of each run.
            reader, buffer: If given, they read runs of one page.

        Returns:
            The bytes, followed by as many as one page has, and where in them each run begins.
        """
        if (firsts >= self._file_pages).any() or (firsts.astype(np.int64) + counts > self._file_pages).any():
            raise _damaged("it is beyond the end of the file", page=int(firsts.max()))
        order = np.argsort(firsts)
        begins, lengths = firsts[order].astype(np.int64), counts[order]
        stops = lengths.cumsum() * self._page_bytes
        places = np.empty_like(stops)
        places[order] = stops - lengths * self._page_bytes
        if reader is not None and buffer is not None:
            flat = buffer[: int(stops[-1]) + self._page_bytes]
            if reader.read(self._descriptor, begins, flat):
                self._check_held()
                return flat, places
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
    """Nodes of pages: arrays int64 ``(n,)``, ``big`` is bool; positions are bytes from the start of the first page.

    Attributes:
        firsts: The first node of each page.
        values: Start of each value; for a value with its own pages, of the number of the first page.
        children: For branches, the pages below.
    """

    firsts: np.ndarray
    keys: np.ndarray
    key_bytes: np.ndarray
    values: np.ndarray
    value_bytes: np.ndarray
    big: np.ndarray
    children: np.ndarray


class _NodeRows:
    """Like :class:`kvstore.index.found_rows.PlacedRows`, without the kernel; values may have their own pages."""

    def __init__(self, leaves: Leaves, flat: np.ndarray, nodes: _Nodes) -> None:
        self._leaves, self._flat, self._nodes = leaves, flat, nodes
        self.keys = gather((flat,), nodes.keys, nodes.key_bytes)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: int) -> bytes:
        return self.keys[place]

    def value_bytes(self) -> np.ndarray:
        return self._nodes.value_bytes

    def some(self, start: int, stop: int) -> FoundRows:
        some = slice(start, stop)
        return FoundRows.of(self.keys.slice(start, stop), self._leaves.values(self._flat, self._nodes, some))


def _check_order(last: bytes, keys: BinaryColumn) -> None:
    column = keys.to_arrow()
    rise = pc.less(column.slice(0, max(0, len(column) - 1)), column.slice(1))
    if len(keys) and (keys[0] <= last or rise.false_count):
        raise _damaged("keys do not ascend", key=keys[0].hex())


def _damaged(reason: str, **where: object) -> CorruptData:
    return CorruptData("A page of an index is damaged; run `kvstore check`.", reason=reason, **where)
