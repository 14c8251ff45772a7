"""When the memtable of a bucket is merged, and how much of a merge is due.

Pace instead of a wall: while a merge is under way, at least as large a part of it is done as there is of what came
meanwhile, compared with the room for that. So a write waits for a slice of about its own size, and once the room is
taken the merge is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.log.segments import LogIdentity
from kvstore.memtable.budget import Budget
from kvstore.memtable.memtable import Memtable
from kvstore.process.written import written_bytes

PAGE_BYTES = 4096
"""What is written of an index at least."""
_ROOM_PARTS = 4
"""What comes during a merge has at least this part of the bucket's limit, however much is merged after a recovery."""
_ROOM_PARTS_MAX = 16
"""It has this part of the limit even if the memtables of the store have taken all of their memory."""


class Pace:
    """The pace of the merges of one bucket.

    Args:
        budget: That of the store.
        identity: Identity of the bucket.
    """

    def __init__(self, memtable: Memtable, budget: Budget, identity: LogIdentity) -> None:
        self._memtable = memtable
        self._budget = budget
        self._bucket = identity.table_id, identity.bucket_id
        self._pages = 0
        self._is_by_size = False

    def note(self) -> None:
        """Tell the budget how large the memtable is now."""
        self._budget.note(*self._bucket, self._memtable.size)

    def forget(self) -> None:
        """Tell the budget that the memtable takes no memory any more."""
        self._budget.note(*self._bucket, 0)

    def begin(self) -> None:
        """Note that a merge begins, and why."""
        self._is_by_size, self._pages = self.is_due(), 0

    @contextmanager
    def slice(self) -> Iterator[None]:
        """Inside the context the next slice of the merge is stored: what that writes is counted."""
        memtable, before = self._memtable, written_bytes()
        rows, size = memtable.merging_rows, memtable.merging_size
        yield
        if before is not None and (after := written_bytes()) is not None:
            self._pages += (after - before) // PAGE_BYTES
            if self._is_by_size and not memtable.is_merging:
                leaves = memtable.index.leaf_bytes // PAGE_BYTES
                self._budget.note_merge(*self._bucket, rows, size, self._pages, leaves)

    def is_due(self) -> bool:
        """Whether a slice is due because of what the memtable takes."""
        memtable = self._memtable
        if memtable.is_merging:
            return memtable.merged_share < self.share()
        return self._budget.is_over(memtable.size, 2, memtable.index.leaf_bytes)

    def is_full(self) -> bool:
        """Whether nothing may be added to the memtable before a slice, or all of a merge, is done."""
        memtable = self._memtable
        if memtable.is_merging:
            return self.share() == 1
        return self._budget.is_over(memtable.size, 1, memtable.index.leaf_bytes)

    def share(self) -> float:
        """Which part of the merge is due, at the end of the next slice; 0 if none is under way."""
        memtable = self._memtable
        merging = memtable.merging_size
        if not merging:
            return 0.0
        newer, limit = memtable.size - merging, self._budget.limit_of(memtable.index.leaf_bytes)
        room = max(min(merging, limit - merging), limit // _ROOM_PARTS)
        room = max(min(room, self._budget.free() + newer), limit // _ROOM_PARTS_MAX, 1)
        return min(1.0, newer / room)
