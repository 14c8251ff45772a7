"""How a key is found in an index's pages, in plain Python: what the native kernel is held against.

It follows docs/format.md, *Index* and *Scan of an index*, and looks at the same bytes in the same order as the kernel:
of a page only what is on the way to the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.disk.pages import BIG, BRANCH, DEPTH_MAX, HEAD, LEAF, NODE, NOWHERE, OVERFLOW

META_MAGIC, META = 0xBEEFC0DE, 8


@dataclass(frozen=True)
class Refused(Exception):
    """Damage, or a tree that is not known any more.

    Attributes:
        page: Its number; None for the latter.
        is_beyond: Whether the file ends before it.
    """

    page: object = None
    is_beyond: bool = False


class Reference:
    """A file as of a transaction.

    Raises:
        Refused: It has no such tree.
    """

    def __init__(self, data: bytes, transaction: int) -> None:
        self._data = data
        if len(data) < 152:
            raise Refused(0, is_beyond=True)
        self._page_bytes = self._number(40, 4)
        if self._page_bytes not in [1 << power for power in range(8, 16)]:
            raise Refused(0)
        self._pages = len(data) // self._page_bytes
        if self._pages < 2:
            raise Refused(1, is_beyond=True)
        found, self._depth, self._root = self._meta(transaction % 2)
        other, _, _ = self._meta((transaction + 1) % 2)
        if found != transaction or other > transaction:
            raise Refused
        if self._root != NOWHERE and not 1 <= self._depth <= DEPTH_MAX:
            raise Refused(self._root)

    def find(self, key: bytes) -> bytes:
        """The value of a key; empty if it is not there."""
        number = self._root
        if number == NOWHERE:
            return b""
        for _ in range(self._depth - 1):
            page, entries, upper = self._entered(number, BRANCH)
            place = self._place(number, page, range(1, entries), upper, key, past_equal=True)
            node = self._node(number, page, place - 1, upper)
            low, high, flags, _ = NODE.unpack_from(page, node)
            number = low | high << 16 | flags << 32
            self._has(number)
        page, entries, upper = self._entered(number, LEAF)
        place = self._place(number, page, range(entries), upper, key, past_equal=False)
        if place == entries:
            return b""
        node = self._node(number, page, place, upper)
        low, high, flags, key_bytes = NODE.unpack_from(page, node)
        start, length = node + NODE.size + key_bytes, low | high << 16
        if page[node + NODE.size : start] != key:
            return b""
        if not length or flags not in (0, BIG) or start + (8 if flags else length) > len(page):
            raise Refused(number)
        return (
            self._big_value(int.from_bytes(page[start : start + 8], "little"), length)
            if flags
            else page[start:][:length]
        )

    def _big_value(self, first: int, length: int) -> bytes:
        needed = -(-(HEAD.size + length) // self._page_bytes)
        if first + needed > self._pages:
            raise Refused(first, is_beyond=True)
        start = first * self._page_bytes
        number, _, kind, low, high = HEAD.unpack_from(self._data, start)
        if (number, kind) != (first, OVERFLOW) or low | high << 16 < needed:
            raise Refused(first)
        return self._data[start + HEAD.size :][:length]

    def _entered(self, number: int, kind: int) -> tuple[bytes, int, int]:
        self._has(number)
        page = self._data[number * self._page_bytes :][: self._page_bytes]
        stored, _, its_kind, lower, upper = HEAD.unpack_from(page)
        if (stored, its_kind) != (number, kind) or lower % 2 or not HEAD.size < lower <= upper <= len(page):
            raise Refused(number)
        return page, (lower - HEAD.size) // 2, upper

    def _place(self, number: int, page: bytes, nodes: range, upper: int, key: bytes, *, past_equal: bool) -> int:
        low, high = nodes.start, nodes.stop
        while low < high:
            middle = (low + high) // 2
            node = self._node(number, page, middle, upper)
            (key_bytes,) = NODE.unpack_from(page, node)[3:]
            found = page[node + NODE.size :][:key_bytes]
            if found < key or (past_equal and found == key):
                low = middle + 1
            else:
                high = middle
        return low

    def _node(self, number: int, page: bytes, nth: int, upper: int) -> int:
        node = int.from_bytes(page[HEAD.size + 2 * nth :][:2], "little")
        if node % 2 or not upper <= node <= len(page) - NODE.size:
            raise Refused(number)
        if node + NODE.size + NODE.unpack_from(page, node)[3] > len(page):
            raise Refused(number)
        return node

    def _has(self, number: int) -> None:
        if number >= self._pages:
            raise Refused(number, is_beyond=True)

    def _meta(self, number: int) -> tuple[int, int, int]:
        """Number of its commit, and depth and root of its tree."""
        start = number * self._page_bytes
        stored, _, kind, _, _ = HEAD.unpack_from(self._data, start)
        fields = [self._number(start + at, 4) for at in (16, 20, 40, 88)]
        if (stored, kind, *fields) != (number, META, META_MAGIC, 1, self._page_bytes, 0):
            raise Refused(number)
        return self._number(start + 144, 8), self._number(start + 94, 2), self._number(start + 128, 8)

    def _number(self, start: int, size: int) -> int:
        return int.from_bytes(self._data[start : start + size], "little")


def found_by_reference(data: bytes, transaction: int, keys: Sequence[bytes]) -> tuple[list[bytes], list[Refused]]:
    """Values of keys, or why they can't be had: one of the two lists is empty, unless there are no keys."""
    try:
        reference = Reference(data, transaction)
    except Refused as refused:
        return [], [refused]
    values, refusals = [], []
    for key in keys:
        try:
            values.append(reference.find(key))
        except Refused as refused:
            refusals.append(refused)
    return ([], refusals) if refusals else (values, [])


def rows_by_reference(
    data: bytes, page_bytes: int, places: Sequence[int], numbers: Sequence[int], last: bytes
) -> list[tuple[int, int, int]] | None:
    """Where keys, values and their ends lie in leaves; None where the kernel has to ask Python."""
    rows = []
    for start, page_number in zip(places, numbers, strict=True):
        page = data[start : start + page_bytes]
        number, _, kind, lower, upper = HEAD.unpack_from(page)
        if (number, kind) != (page_number, LEAF) or lower % 2 or not HEAD.size < lower <= upper <= page_bytes:
            return None
        filled = 0
        for pointer in range(HEAD.size, lower, 2):
            node = int.from_bytes(page[pointer : pointer + 2], "little")
            if node % 2 or not upper <= node <= page_bytes - NODE.size:
                return None
            low, high, flags, key_bytes = NODE.unpack_from(page, node)
            key, value = node + NODE.size, node + NODE.size + key_bytes
            end = value + (low | high << 16)
            if flags or end == value or end + end % 2 > page_bytes or page[key:value] <= last:
                return None
            last = page[key:value]
            filled += end + end % 2 - node
            rows.append((start + key, start + value, start + end))
        if filled != page_bytes - upper:
            return None
    return rows


def tree_file(rows: dict[bytes, bytes], *, page_bytes: int = 256, per_page: int = 3, transaction: int = 2) -> bytes:
    """A file with rows, as LMDB could have written it, with pages so small that few rows make several levels."""
    pages: list[bytes] = [b"", b""]

    def put(kind: int, nodes: list[bytes]) -> int:
        number, at = len(pages), page_bytes
        pointers, filled = b"", b""
        for node in nodes:
            node += bytes(len(node) % 2)
            at -= len(node)
            pointers, filled = pointers + at.to_bytes(2, "little"), node + filled
        head = HEAD.pack(number, 0, kind, HEAD.size + len(pointers), at)
        pages.append((head + pointers).ljust(at, b"\0") + filled)
        assert len(pages[-1]) == page_bytes
        return number

    def value_node(key: bytes, value: bytes) -> bytes:
        size = len(value).to_bytes(4, "little")
        if NODE.size + len(key) + len(value) <= page_bytes // 4:
            return size + bytes(2) + len(key).to_bytes(2, "little") + key + value
        first, needed = len(pages), -(-(HEAD.size + len(value)) // page_bytes)
        run = HEAD.pack(first, 0, OVERFLOW, needed & 0xFFFF, needed >> 16) + value
        run = run.ljust(needed * page_bytes, b"\0")
        pages.extend(run[start : start + page_bytes] for start in range(0, len(run), page_bytes))
        return size + BIG.to_bytes(2, "little") + len(key).to_bytes(2, "little") + key + first.to_bytes(8, "little")

    level = []
    listed = sorted(rows.items())
    for start in range(0, len(listed), per_page):
        some = listed[start : start + per_page]
        level.append((some[0][0], put(LEAF, [value_node(*pair) for pair in some])))
    depth = 1
    while len(level) > 1:
        above = []
        for start in range(0, len(level), per_page):
            some = level[start : start + per_page]
            keys = [b"", *(key for key, _ in some[1:])]
            nodes = [
                child.to_bytes(6, "little") + len(key).to_bytes(2, "little") + key
                for key, (_, child) in zip(keys, some, strict=True)
            ]
            above.append((some[0][0], put(BRANCH, nodes)))
        level, depth = above, depth + 1
    root = level[0][1] if level else NOWHERE
    for number in (0, 1):
        its = transaction if transaction % 2 == number else transaction - 1
        free = page_bytes.to_bytes(4, "little") + bytes(36) + NOWHERE.to_bytes(8, "little")
        main = bytes(6) + depth.to_bytes(2, "little") + bytes(32) + root.to_bytes(8, "little")
        body = META_MAGIC.to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes(16) + free + main
        body += (len(pages) - 1).to_bytes(8, "little") + its.to_bytes(8, "little")
        pages[number] = (HEAD.pack(number, 0, META, 0, 0) + body).ljust(page_bytes, b"\0")
    return b"".join(pages)
