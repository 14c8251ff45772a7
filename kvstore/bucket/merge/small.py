"""Merges a small write into the stored rows, row by row: what ``last_row`` and ``first_row`` do to whole columns.

Nothing is changed here. A write that turns out to need the long way has read rows, and that is all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvstore.memtable.run import Run
from kvstore.request.encoded import BYTES_MAX, EncodedWrites, SmallRequest
from kvstore.request.request import Request
from logformat.log.batch import LogBatch
from logformat.log.change import ChangeType
from logformat.rows.few.few_rows import Cells

_INSERT, _BEFORE, _AFTER, _DELETE = map(
    int, (ChangeType.INSERT, ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE, ChangeType.DELETE)
)


class EncodedMerge(NamedTuple):
    """What a small write makes of the stored rows.

    Attributes:
        records: Number of its change records.
        pieces: Their batch.
        rows: See :meth:`kvstore.memtable.memtable.Memtable.put`.
        added_rows, digest: Change of the row count and of the digest (modulo 2^64).
    """

    records: int
    pieces: list[memoryview]
    rows: dict[bytes, bytes] | Run
    added_rows: int
    digest: int


def merge_small(
    writes: EncodedWrites,
    request: Request | SmallRequest,
    get: Callable[[list[bytes]], list[bytes]],
    header: LogBatch,
) -> EncodedMerge | None:
    """Merge a request; None if it needs the long way.

    Args:
        writes: Small writes of the table as it is now.
        get: Returns the stored values of keys, in order; empty where there is none.
        header: Of the batch of its change records, without what is said of these.

    Raises:
        CorruptData: A stored row is damaged.
    """
    operations = writes.operations_of(request)
    if operations is None:
        return None
    keys = list(dict.fromkeys([each.code for each in operations]))
    rows = dict(zip(keys, get(keys), strict=True))
    if sum(map(len, rows.values())) > BYTES_MAX:
        return None
    old_hashes: dict[bytes, int] = {}
    for code, stored in rows.items():
        if stored:
            old_hash = writes.rows.hash_of(code, stored)
            if old_hash is None:
                return None
            old_hashes[code] = old_hash
    change_types = bytearray()
    records: list[tuple[Cells, bytes]] = []
    hashes: dict[bytes, int] = {}
    for code, cells, after, its_hash in operations:
        before = rows[code]
        if before and (writes.keeps_first or (writes.skips_identical and after == before)):
            continue
        if before and (after is None or writes.preimages):
            change_types.append(_DELETE if after is None else _BEFORE)
            records.append((cells, before))
        if after is not None:
            change_types.append(_INSERT if writes.tells_inserts and not before else _AFTER)
            records.append((cells, after))
        rows[code], hashes[code] = after or b"", its_hash
    columns = writes.rows.columns(records)
    return EncodedMerge(
        len(change_types),
        [writes.records.batch(header, bytes(change_types), columns)],
        {key: rows[key] for key in hashes if rows[key] or key in old_hashes},
        sum(map(bool, rows.values())) - len(old_hashes),
        sum(hashes.values()) - sum([old_hashes[key] for key in hashes if key in old_hashes]),
    )
