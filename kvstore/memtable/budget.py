"""How much memory the memtables of a store may take in this process.

A memtable is merged once it has reached the limit of one bucket; or once all of them together have reached the store's,
if it is not smaller than their mean. So the largest go first, whichever buckets are written.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from kvstore.process.memory import available_memory
from logformat.ids import BucketId, TableId

STORE_BYTES_MAX = 768 << 20
"""Of all memtables of a store, unless its setting says otherwise; at most a part of the memory that is available."""
MEMORY_PARTS = 4
BUCKET_BYTES_MAX = 128 << 20
"""Of one bucket, unless the setting says otherwise: other processes read from the log what is not merged."""
INDEX_PARTS = 12
"""Over a larger index it is this part of its leaves, but not more than half of the store's: a row of random keys costs
about half a page of the index then."""


@dataclass(frozen=True, slots=True)
class Merges:
    """Merges of a bucket that began because memory was full.

    Attributes:
        rows: Rows that were merged.
        bytes: Memory that they took.
        pages: Pages that were written for them.
        count: Number of merges.
        leaf_pages: Leaf pages of the index.
    """

    rows: int = 0
    bytes: int = 0
    pages: int = 0
    count: int = 0
    leaf_pages: int = 0

    def and_one(self, rows: int, bytes: int, pages: int, leaf_pages: int) -> Merges:
        """With one more merge."""
        return Merges(self.rows + rows, self.bytes + bytes, self.pages + pages, self.count + 1, leaf_pages)


class Budget:
    """Memory of the memtables of one store.

    Args:
        limit: The setting ``memtable_bytes``.

    Attributes:
        limit: For all memtables, in bytes.
        bucket_limit: For one of them, over an index that is not large.
    """

    def __init__(self, limit: int | None) -> None:
        available = available_memory() if limit is None else None
        self.bucket_limit = BUCKET_BYTES_MAX if limit is None else limit
        self.limit = STORE_BYTES_MAX if limit is None else limit
        if available is not None:
            self.limit = min(self.limit, available // MEMORY_PARTS)
        self._lock = threading.Lock()
        self._sizes: dict[tuple[TableId, BucketId], int] = {}
        self._merges: dict[tuple[TableId, BucketId], Merges] = {}
        self._total = 0

    def note(self, table: TableId, bucket: BucketId, size: int) -> None:
        """Take down how large the memtable of a bucket is now, in bytes; 0 once it is merged."""
        with self._lock:
            self._total += size - self._sizes.pop((table, bucket), 0)
            if size:
                self._sizes[table, bucket] = size

    def note_merge(self, table: TableId, bucket: BucketId, rows: int, size: int, pages: int, leaf_pages: int) -> None:
        """Take down a merge that began because memory was full; see :class:`Merges`."""
        with self._lock:
            before = self._merges.get((table, bucket), Merges())
            self._merges[table, bucket] = before.and_one(rows, size, pages, leaf_pages)

    def merges(self) -> dict[TableId, list[Merges]]:
        """Merges of the buckets of each table that began because memory was full."""
        with self._lock:
            listed = list(self._merges.items())
        merges_of: dict[TableId, list[Merges]] = {}
        for (table, _), merges in listed:
            merges_of.setdefault(table, []).append(merges)
        return merges_of

    def limit_of(self, index_bytes: int) -> int:
        """The limit of one memtable over an index of a size, in bytes."""
        return max(self.bucket_limit, min(index_bytes // INDEX_PARTS, self.limit // 2))

    def is_over(self, size: int, times: int, index_bytes: int) -> bool:
        """Whether a memtable of this size, which was taken down, would be too large if each was so many times as large.

        Once it is too large it is merged before it takes more; and at half of that, since as much may come meanwhile.
        """
        if times * size >= self.bucket_limit and times * size >= self.limit_of(index_bytes):
            return True
        return times * self._total >= self.limit and size * len(self._sizes) >= self._total

    def free(self) -> int:
        """What the memtables of the store do not take, in bytes; less than 0 if they take too much."""
        return self.limit - self._total

    def sizes(self) -> dict[TableId, int]:
        """How large the memtables of each table are, in bytes."""
        with self._lock:
            listed = list(self._sizes.items())
        size_of: dict[TableId, int] = {}
        for (table, _), size in listed:
            size_of[table] = size_of.get(table, 0) + size
        return size_of
