"""Verification of an LMDB file's structure before LMDB opens it: LMDB has no checksums and trusts what it reads.

* The file is read only with ``read``, never through a map: whatever the bytes are, the worst result is ``CorruptData``.
* The last commit is verified. A later commit changes none of its pages, and the one after that its meta page; so while
  others commit, a page that looks wrong is read again.
* Rows and edits have their own checksums; this module checks only their placement (docs/format.md, Recovery).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from kvstore.disk.files import data_ranges
from kvstore.errors import CorruptData

ALL_PAGES_BYTES_MAX = 4 << 20
"""Files up to this size are verified whole at every open; larger ones only on demand."""

BRANCH, LEAF, OVERFLOW = 1, 2, 4
"""Kinds of pages."""
BIG = 1
"""Flag of a leaf node whose value has its own pages."""
NOWHERE = 2**64 - 1
"""Root of an empty tree."""
DEPTH_MAX = 32
HEAD = Struct("=QHHHH")
"""Head of a page: number, unused, flags, end of the pointers, start of the nodes; or count of overflow pages."""
NODE = Struct("=HHHH")
"""Head of a node: value size in two halves, flags, key size; in a branch, the child page in three parts."""

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = 8
_NAMED = 2
_TRIES = 20
_UNWRITTEN_PAGES_MAX = 1 << 20

_META_BODY = Struct("=IIQQ48s48sQQ")  # magic, version, unused address, map size, two trees, last page, transaction
_TREE = Struct("=IHHQQQQQ")  # page size or unused, flags, depth, pages of three kinds, entries, root
_WORD = Struct("=Q")
COMMIT_AT = HEAD.size + _META_BODY.size - _WORD.size
"""Place of the number of its commit in a meta page."""
_FREE_FLAGS = 8  # keys are integers


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree of a database, as of a commit.

    Attributes:
        depth: Number of levels of pages; leaves are the last.
        counts: Branches, leaves, overflow pages, entries.
        root: Number of the root page; ``NOWHERE`` if the tree is empty.
    """

    flags: int
    depth: int
    counts: tuple[int, int, int, int]
    root: int

    @classmethod
    def of(cls, record: bytes) -> Tree:
        """Decode a database's record."""
        _, flags, depth, *counts, root = _TREE.unpack(record)
        return cls(flags, depth, (counts[0], counts[1], counts[2], counts[3]), root)


@dataclass(frozen=True, slots=True)
class _Meta:
    """Result of a commit: two trees, the last page, and the commit's number."""

    free: Tree
    main: Tree
    last_page: int
    transaction: int


class WrongPage(Exception):
    """The bytes are not what LMDB writes."""


def verify(path: Path, *, all_pages: bool) -> None:
    """Verify that LMDB can safely open a file; other processes may commit to it meanwhile.

    Args:
        path: The file; it has a commit, or was at least created.
        all_pages: Verify all pages of the last commit. Otherwise only that the two meta pages belong to their commits,
            and that the file is not cut off.

    Raises:
        CorruptData: It is not safe. Not raised while others commit so fast that no read sees a consistent file.
    """
    with open(path, "rb", buffering=0) as file:
        for _ in range(_TRIES):
            before = file.read(_META_BYTES) if not file.seek(0) else b""
            try:
                PageFile(file.fileno()).verify(all_pages=all_pages)
                return
            except WrongPage as wrong:
                file.seek(0)
                if file.read(_META_BYTES) == before:
                    raise CorruptData(
                        "A page of an LMDB file is damaged; run `kvstore check`.", path=path, reason=str(wrong)
                    ) from wrong


def values(path: Path, *, bytes_max: int) -> Iterator[bytes]:
    """Whatever looks like a value in whatever looks like a leaf, whether or not it is in a tree.

    For what has checksums of its own, and is never changed, of a file that :func:`verify` refuses.

    Args:
        bytes_max: Values that are larger are left out.
    """
    size = path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        page_bytes = _likely_page_bytes(file.fileno())
        for begin, end in data_ranges(file.fileno(), 0, size):
            for start in range(begin // page_bytes * page_bytes, end, page_bytes):
                page = os.pread(file.fileno(), page_bytes, start).ljust(page_bytes, b"\0")
                yield from _values_in(file.fileno(), page, size, bytes_max)


def _likely_page_bytes(descriptor: int) -> int:
    """Size of a page as the first meta page has it; if that is damaged, what LMDB takes for new files here."""
    try:
        return PageFile(descriptor).page_bytes
    except WrongPage:
        return mmap.PAGESIZE


def _values_in(descriptor: int, page: bytes, size: int, bytes_max: int) -> Iterator[bytes]:
    """Values of a page, if it looks like a leaf."""
    _, _, kind, lower, _ = HEAD.unpack_from(page)
    if kind != LEAF:
        return
    positions = page[HEAD.size : min(lower, len(page)) & ~1]
    for (position,) in Struct("=H").iter_unpack(positions):
        if position > len(page) - NODE.size:
            continue
        try:
            node = _Node.of(page, position, kind)
        except WrongPage:
            continue
        if not node.flags & BIG:
            yield node.value
        elif len(node.value) == _WORD.size and node.value_bytes <= bytes_max:
            number = _WORD.unpack(node.value)[0]
            if number >= size // len(page):
                continue
            stored_number, _, kind, _, _ = HEAD.unpack(os.pread(descriptor, HEAD.size, number * len(page)))
            if (stored_number, kind) == (number, OVERFLOW):
                yield os.pread(descriptor, node.value_bytes, number * len(page) + HEAD.size)


def tree_of(descriptor: int, transaction: int) -> tuple[int, Tree] | None:
    """The unnamed database as of a transaction.

    Args:
        descriptor: Descriptor of the file, which LMDB has open.
        transaction: Number of a commit.

    Returns:
        Page size, and the tree. None if another commit has overwritten this commit's meta page, or may do so soon: a
        commit overwrites the meta page of the commit two before it.

    Raises:
        CorruptData: A meta page is damaged.
    """
    try:
        file = PageFile(descriptor)
        # The order matters: as long as the next commit is not there, the commit after it has not begun to write.
        its, other = file.meta(transaction % 2), file.meta((transaction + 1) % 2)
    except WrongPage as wrong:
        raise CorruptData("A page of an LMDB file is damaged; run `kvstore check`.", reason=str(wrong)) from wrong
    if its.transaction != transaction or other.transaction > transaction:
        return None
    return file.page_bytes, its.main


def last_commit(descriptor: int) -> int | None:
    """Number of the last commit that a file's meta pages show; None if they are damaged, or just being written."""
    try:
        file = PageFile(descriptor)
        return max(file.meta(0).transaction, file.meta(1).transaction)
    except WrongPage:
        return None


def free_pages(descriptor: int, transaction: int) -> tuple[int, int, dict[int, int]] | None:
    """Free pages as of a transaction that is open, so that no commit uses the pages that list them.

    Returns:
        Page size, file size, and how many pages each earlier transaction freed; None if another commit has overwritten
        this commit's meta page.

    Raises:
        CorruptData: A page is damaged.
    """
    try:
        file = PageFile(descriptor)
        meta = file.meta(transaction % 2)
        if meta.transaction != transaction:
            return None
        return file.page_bytes, os.fstat(descriptor).st_size, file.freed(meta)
    except WrongPage as wrong:
        raise CorruptData("A page of an LMDB file is damaged; run `kvstore check`.", reason=str(wrong)) from wrong


_META_BYTES = 1 << 17  # both meta pages, whatever the page size


class PageFile:
    """One pass over a file.

    Attributes:
        page_bytes: Size of a page.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self.page_bytes = HEAD.size + _META_BODY.size
        first = self._read(0)
        self.page_bytes = _TREE.unpack(_META_BODY.unpack_from(first, HEAD.size)[4])[0]
        if not (256 <= self.page_bytes <= 1 << 15) or self.page_bytes & (self.page_bytes - 1):
            raise WrongPage(f"a page of {self.page_bytes} bytes")
        self._seen = bytearray()

    def verify(self, *, all_pages: bool) -> None:
        """See :func:`verify`.

        Raises:
            WrongPage: LMDB could not safely open the file.
        """
        metas = self.meta(0), self.meta(1)
        last = max(metas, key=lambda meta: meta.transaction)
        if abs(metas[0].transaction - metas[1].transaction) != bool(last.transaction):
            raise WrongPage("the meta pages are not of two consecutive commits")
        for number, meta in enumerate(metas):
            self._belongs_to_its_commit(number, meta, is_last=meta is last)
        pages = self._size // self.page_bytes
        if not 1 <= last.last_page < 2 * pages + _UNWRITTEN_PAGES_MAX:
            raise WrongPage(f"the file ends long before page {last.last_page}")
        # Free pages at the end may never have been written; the walk detects missing pages that are in use.
        if all_pages or last.last_page >= pages:
            self._walk_all(last)

    def meta(self, number: int) -> _Meta:
        """One of the two meta pages."""
        page = self._read(number)
        stored_number, _, flags, _, _ = HEAD.unpack_from(page)
        magic, version, _, _, free, main, last_page, transaction = _META_BODY.unpack_from(page, HEAD.size)
        page_bytes, unused = _TREE.unpack(free)[0], _TREE.unpack(main)[0]
        if (stored_number, flags, magic, version) != (number, _META, _MAGIC, _VERSION):
            raise WrongPage(f"meta page {number} is damaged")
        if (page_bytes, unused) != (self.page_bytes, 0):
            raise WrongPage(f"meta page {number} has another page size")
        return _Meta(Tree.of(free), Tree.of(main), last_page, transaction)

    def freed(self, meta: _Meta) -> dict[int, int]:
        """How many pages each transaction freed that are still free."""
        self._seen = bytearray(meta.last_page + 1)
        walked = self._walk(meta.free, _FREE_FLAGS)
        return {_WORD.unpack(key)[0]: _WORD.unpack_from(value)[0] for key, value, _ in walked}

    def _belongs_to_its_commit(self, number: int, meta: _Meta, *, is_last: bool) -> None:
        """Check a meta page's number against the record of the pages that its commit freed, which has the number too.

        Otherwise one flipped bit could make the second-last commit the last one. The older meta page need not belong to
        its own commit: a power cut may have lost an unsynced meta page after the commit that follows it had begun to
        write. That commit is two after the one of the older meta page and may reuse its pages.
        """
        transaction = meta.transaction
        if transaction and transaction % 2 != number:
            raise WrongPage(f"transaction {transaction} is in meta page {number}")
        if transaction <= 1:
            if meta.free.root != NOWHERE or (not transaction and meta.main.root != NOWHERE):
                raise WrongPage(f"transaction {transaction} has pages of earlier ones")
            return
        if is_last:
            if self.last_that_freed(meta) != _WORD.pack(transaction):
                raise WrongPage(f"the pages that transaction {transaction} freed are not recorded")
            return
        freed = b""
        with suppress(WrongPage):  # the pages may have been reused
            freed = self.last_that_freed(meta)
        if freed == _WORD.pack(transaction + 2):
            raise WrongPage(f"transaction {transaction + 2} has the number {transaction}")

    def last_that_freed(self, meta: _Meta) -> bytes:
        """Number of the last commit in the tree of free pages."""
        at = meta.free.root
        for _ in range(DEPTH_MAX):
            flags, nodes = self._nodes(at)
            if flags == LEAF:
                return nodes[-1].key
            at = nodes[-1].child
        raise WrongPage("the tree of free pages has no end")

    def _walk_all(self, meta: _Meta) -> None:
        self._seen = bytearray(meta.last_page + 1)
        self._seen[:2] = b"\1\1"
        for key, value, flags in self._walk(meta.free, _FREE_FLAGS):
            if len(key) != _WORD.size or len(value) % _WORD.size or not value or flags & _NAMED:
                raise WrongPage("a list of free pages is damaged")
            count, *pages = (number for (number,) in _WORD.iter_unpack(value))
            if count != len(pages):
                raise WrongPage("a list of free pages has a wrong length")
            for page in pages:
                self._see(page)
        for _, value, flags in self._walk(meta.main, 0):
            if flags & _NAMED:
                if len(value) != _TREE.size or _TREE.unpack(value)[0]:
                    raise WrongPage("the record of a database is damaged")
                if any(below & _NAMED for _, _, below in self._walk(Tree.of(value), 0)):
                    raise WrongPage("a database contains a named database")
        if not all(self._seen):
            raise WrongPage(f"page {self._seen.index(0)} is neither used nor free")

    def _walk(self, tree: Tree, flags: int) -> Iterator[tuple[bytes, bytes, int]]:
        """Verify a tree; yields every key, its value, including values with their own pages, and the node's flags."""
        if tree.flags != flags:
            raise WrongPage(f"a tree has flags {tree.flags}")
        if tree.root == NOWHERE:
            if tree.depth or any(tree.counts):
                raise WrongPage("an empty tree has nonzero counts")
            return
        counts = [0, 0, 0, 0]
        before: bytes | None = None
        waiting: list[tuple[int, int, bytes | None, bytes | None]] = [(tree.root, 1, None, None)]
        while waiting:
            number, depth, low, high = waiting.pop()
            self._see(number)
            kind, nodes = self._nodes(number)
            if (kind == LEAF) != (depth == tree.depth) or depth > DEPTH_MAX:
                raise WrongPage(f"page {number} is at a wrong depth")
            keys = [_in_order(node.key, flags) for node in nodes]
            if kind == BRANCH:
                counts[0] += 1
                # LMDB ignores the first key of a branch page.
                lows, highs = [low, *keys[1:]], [*keys[1:], high]
                below = zip(nodes, lows, highs, strict=True)
                waiting += reversed([(node.child, depth + 1, at_least, under) for node, at_least, under in below])
                continue
            counts[1] += 1
            counts[3] += len(nodes)
            for node, key in zip(nodes, keys, strict=True):
                if (before is not None and key <= before) or (low is not None and key < low):
                    raise WrongPage(f"a key of page {number} is out of order")
                before = key
                value = node.value
                if node.flags & BIG:
                    value, pages = self._big_value(value, node.value_bytes)
                    counts[2] += pages
                yield node.key, value, node.flags
            if high is not None and before is not None and before >= high:
                raise WrongPage(f"a key of page {number} is out of order")
        if tuple(counts) != tree.counts:
            raise WrongPage(f"a tree counts {tree.counts} and has {tuple(counts)}")

    def _nodes(self, number: int) -> tuple[int, list[_Node]]:
        """Kind and nodes of a branch or leaf: at least one, and together they exactly fill their part of the page."""
        page = self._read(number)
        stored_number, _, kind, lower, upper = HEAD.unpack_from(page)
        if stored_number != number or kind not in (BRANCH, LEAF):
            raise WrongPage(f"page {number} has another number or kind")
        if not HEAD.size < lower <= upper <= len(page) or lower % 2:
            raise WrongPage(f"page {number} has wrong bounds")
        positions = [position for (position,) in Struct("=H").iter_unpack(page[HEAD.size : lower])]
        nodes = []
        filled = []
        for position in positions:
            if not upper <= position <= len(page) - NODE.size:
                raise WrongPage(f"a node of page {number} is outside of it")
            node = _Node.of(page, position, kind)
            nodes.append(node)
            filled.append((position, node.end + node.end % 2))
        filled.sort()
        ends = [upper, *(end for _, end in filled)]
        if ends[:-1] != [position for position, _ in filled] or ends[-1] != len(page):
            raise WrongPage(f"nodes of page {number} overlap or leave gaps")
        return kind, nodes

    def _big_value(self, where: bytes, length: int) -> tuple[bytes, int]:
        number = _WORD.unpack(where)[0]
        pages = -(-(HEAD.size + length) // self.page_bytes)
        stored_number, _, kind, low, high = HEAD.unpack_from(self._read(number))
        stored = low + (high << 16)
        # A value that is put twice in a transaction, shorter the second time, keeps its pages.
        if (stored_number, kind) != (number, OVERFLOW) or stored < pages:
            raise WrongPage(f"page {number} does not hold a value of {pages} pages")
        for page in range(number, number + stored):
            self._see(page)
        start = number * self.page_bytes + HEAD.size
        return os.pread(self._descriptor, length, start), stored

    def _see(self, number: int) -> None:
        if number >= len(self._seen) or self._seen[number]:
            raise WrongPage(f"page {number} is used twice, or does not exist")
        self._seen[number] = 1

    def _read(self, number: int) -> bytes:
        if (number + 1) * self.page_bytes > self._size:
            raise WrongPage(f"page {number} is beyond the end of the file")
        return os.pread(self._descriptor, self.page_bytes, number * self.page_bytes)


@dataclass(frozen=True, slots=True)
class _Node:
    """An entry of a branch or leaf.

    Attributes:
        child: In a branch, the child page.
        value: In a leaf, the value; or the number of its first page if it has its own pages.
        end: End of the node in the page.
    """

    key: bytes
    flags: int
    child: int
    value: bytes
    value_bytes: int
    end: int

    @classmethod
    def of(cls, page: bytes, position: int, kind: int) -> _Node:
        low, high, flags, key_bytes = NODE.unpack_from(page, position)
        key_at = position + NODE.size
        value_at = key_at + key_bytes
        key = page[key_at:value_at]
        if kind == BRANCH:
            return cls(key, 0, low | high << 16 | flags << 32, b"", 0, value_at)
        if flags & ~(BIG | _NAMED) or flags == BIG | _NAMED:
            raise WrongPage(f"a node has flags {flags}")
        value_bytes = low | high << 16
        end = value_at + (_WORD.size if flags & BIG else value_bytes)
        if end > len(page):
            raise WrongPage("a node is longer than its page")
        return cls(key, flags, -1, page[value_at:end], value_bytes, end)


def _in_order(key: bytes, flags: int) -> bytes:
    """A key encoded so that byte order is key order."""
    return _WORD.unpack(key)[0].to_bytes(_WORD.size, "big") if flags and len(key) == _WORD.size else key
