"""Merges rows into the stored rows by the native kernel, in one call: what ``last_row`` and ``first_row`` do.

The bytes are those that Python makes. What the kernel does not know is left to Python: nested and dropped columns,
stored rows of an earlier schema, and damage. Nothing is changed here.
"""

from __future__ import annotations

import numpy as np

from kvstore.bucket.merge.small import EncodedMerge
from kvstore.kernel.changes import Made, Stored
from kvstore.kernel.writes import Encoded, Few
from kvstore.memtable.memtable import Memtable
from kvstore.memtable.run import RUN_KEYS, Run
from kvstore.request.encoded import EncodedWrites, SmallRequest
from kvstore.request.request import Request
from logformat.log.arrow_message import Compression
from logformat.log.batch import BATCH_BYTES_MAX, RECORDS_MAX, LogBatch, encode_parts
from logformat.log.few_records import FewRecordsEncoder, finished, packed

COMPRESSED_RECORDS_MIN = 4096
"""A smaller batch is not compressed: to begin would take longer than to write what it saves."""


def merge_natively(
    writes: EncodedWrites,
    request: Request | SmallRequest,
    memtable: Memtable,
    header: LogBatch,
    compression: Compression,
) -> EncodedMerge | None:
    """Merge a request; None if Python has to do it.

    Args:
        writes: Writes of the table as it is now.
        header: Of the batch of its change records, without what is said of these.

    Raises:
        CorruptData: A page of the index is damaged.
    """
    native = writes.native
    rows = writes.encoded(request) if native is not None else None
    if native is None or rows is None:
        return None
    skips = writes.skips_identical or (isinstance(request, Request) and request.skips_identical)
    if isinstance(rows, Few):
        known = request.stored if isinstance(request, SmallRequest) else None
        old = memtable.get(rows.names) if known is None else known
        made = native.make_few(rows, old, packed(header), skips=skips)
        if made is None or len(made.batch) > BATCH_BYTES_MAX:
            return None
        left = {name: row for name, row, place in zip(rows.names, rows.values, made.final, strict=True) if place >= 0}
        return EncodedMerge(made.records, [made.batch], left, made.added_rows, made.digest)
    stored = memtable.stored(rows.keys)
    made = native.make(rows, Stored(*stored) if isinstance(stored, tuple) else stored, skips=skips)
    if made is None:
        return None
    pieces = _pieces(writes.records, header, made, compression)
    return EncodedMerge(made.records, pieces, _left(rows, made), made.added_rows, made.digest)


def _left(rows: Encoded, made: Made) -> dict[bytes, bytes] | Run:
    """The rows that change, by key."""
    final = np.asarray(made.final)
    if len(rows.keys) >= RUN_KEYS:
        at = np.flatnonzero(final >= 0)
        return Run(rows.keys.take(at), rows.values.take(final[at]))  # copies: rows have more in their memory
    names, values = rows.keys.to_list(), rows.values.to_list()
    pairs = zip(names, final.tolist(), strict=True)
    return {name: values[operation] for name, operation in pairs if operation >= 0}


def _pieces(encoder: FewRecordsEncoder, header: LogBatch, made: Made, compression: Compression) -> list[memoryview]:
    if made.records < COMPRESSED_RECORDS_MIN:
        compression = None
    if compression is None and len(made.batch) <= BATCH_BYTES_MAX and made.records <= RECORDS_MAX:
        # A copy: the log keeps what is not synced yet, and the kernel had more room than it needed.
        return [finished(memoryview(bytearray(made.batch)), header, made.records)]
    header.change_types, header.rows = encoder.decoded(made.batch, made.records)
    return encode_parts(header, compression=compression)
