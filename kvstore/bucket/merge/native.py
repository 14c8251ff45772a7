"""Merges rows into the stored rows by the native kernel, in one call: what ``last_row`` and ``first_row`` do.

The bytes are those that Python makes. What the kernel does not know is left to Python: nested and dropped columns,
stored rows of an earlier schema, and damage. Nothing is changed here.
"""

from __future__ import annotations

from itertools import compress

from kvstore.bucket.merge.small import SmallMerge
from kvstore.kernel.changes import Made, Stored
from kvstore.memtable.memtable import Memtable
from kvstore.request.request import Request
from kvstore.request.small import SmallRequest, SmallWrites
from logformat.binary_column import BinaryColumn
from logformat.log.arrow_message import Compression
from logformat.log.batch import BATCH_BYTES_MAX, RECORDS_MAX, LogBatch, encode_parts
from logformat.log.few_records import FewRecordsEncoder, finished

COMPRESSED_RECORDS_MIN = 4096
"""A smaller batch is not compressed: to begin would take longer than to write what it saves."""
ONE_BY_ONE_MAX = 12
"""Up to so many keys are found faster one by one."""


def merge_natively(
    writes: SmallWrites, request: Request | SmallRequest, memtable: Memtable, compression: Compression
) -> SmallMerge | None:
    """Merge a request; None if Python has to do it.

    Args:
        writes: Writes of the table as it is now.

    Raises:
        CorruptData: A page of the index is damaged.
    """
    native = writes.native
    rows = writes.encoded(request) if native is not None else None
    if native is None or rows is None:
        return None
    names = rows.keys.to_list() if rows.names is None else rows.names
    stored = _stored(memtable, rows.keys, names)
    skips = writes.skips_identical or (isinstance(request, Request) and request.skips_identical)
    made = None if stored is None else native.make(rows, stored, skips=skips)
    if made is None:
        return None
    listed, final = rows.values.to_list() if rows.listed is None else rows.listed, made.final
    if (final < 0).any():
        names, final = list(compress(names, final >= 0)), final[final >= 0]
    values = list(map(listed.__getitem__, final.tolist()))

    def encode(batch: LogBatch) -> list[memoryview]:
        return _encoded(writes.records, batch, made, compression)

    return SmallMerge(made.records, encode, names, values, made.added_rows, made.digest)


def _stored(memtable: Memtable, keys: BinaryColumn, names: list[bytes]) -> Stored | None:
    """What is stored under the keys; None if Python has to say what is wrong with it."""
    if len(names) > ONE_BY_ONE_MAX:
        return Stored(*memtable.find(keys, names))
    found = list(map(memtable.pending_value, names))
    if b"" in found:
        return None
    values = BinaryColumn.from_list([value or b"" for value in found])
    return Stored(values.lengths, values)


def _encoded(encoder: FewRecordsEncoder, header: LogBatch, made: Made, compression: Compression) -> list[memoryview]:
    if made.records < COMPRESSED_RECORDS_MIN:
        compression = None
    if compression is None and len(made.batch) <= BATCH_BYTES_MAX and made.records <= RECORDS_MAX:
        return [finished(made.batch, header, made.records)]
    header.change_types, header.rows = encoder.decoded(made.batch, made.records)
    return encode_parts(header, compression=compression)
