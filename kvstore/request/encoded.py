"""Writes that are merged as they are stored: rows of flat columns, encoded in the caller's thread.

* Arrow data that has the table's columns as they are becomes a request of encoded rows (:meth:`EncodedWrites.arrow`).
* A few rows given as dicts are a small write: they are encoded without numpy or Arrow, whose calls cost more than the
  rows (:meth:`EncodedWrites.upserts`).

:func:`encoded_writes` decides which tables take these ways. What they leave takes the long way, which makes the same
bytes; so does a request of a table that was altered before its turn. The native kernel merges requests of these tables,
whatever their size (:meth:`EncodedWrites.encoded`); without it, Python does so for small writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Several
from concurrent.futures import Future
from ctypes import CDLL
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from kvstore.errors import InvalidRequest
from kvstore.kernel import library
from kvstore.kernel.changes import ChangeMaker
from kvstore.kernel.writes import FEW_MAX, Encoded, Few, RowEncoder
from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Answer, Reply
from kvstore.request.request import NO_EPOCH, ConditionalRequest, Request, group
from kvstore.request.results import AppendResult
from kvstore.request.row_layout import layout_of
from kvstore.request.rules import engine_of_table
from kvstore.request.sizes import BATCH_BYTES, bytes_of as bytes_of_rows
from kvstore.request.sums import StoredSums
from logformat.binary_column import BinaryColumn
from logformat.ids import NO_SEQUENCE, NO_WRITER, BucketId, Epoch, SchemaId, Sequence, WriterId
from logformat.log.few_records import FewRecordsEncoder
from logformat.rows.bucketing import bucket_of
from logformat.rows.changes import Changes
from logformat.rows.few.few_rows import Cells, FewRowsCodec, Operation
from logformat.rows.intake import ArrowIntake
from merge_engines.first_row import FirstRow
from merge_engines.last_row import LastRow

ROWS_MAX = 64
"""Largest number of rows of a small write. For twice as many whole columns cost less."""
BYTES_MAX = 1 << 17
"""Largest number of bytes of the values that a small write stores, and of those that it replaces."""
ADDED_BYTES_MAX = 1 << 16
"""Largest row to which the owner of a bucket adds numbers for another process."""


def encoded_writes(definition: TableDefinition) -> EncodedWrites | None:
    """The encoded writes of a table, built once for each definition; None if the table takes none."""
    return _encoded_writes(definition, library.kernel())


@lru_cache(maxsize=256)
def _encoded_writes(definition: TableDefinition, kernel: CDLL | None) -> EncodedWrites | None:
    options = definition.options
    if definition.primary_key is None or options.auto_increment is not None:
        return None
    if definition.stored is not definition.schema:  # it has dropped columns
        return None
    if not isinstance(engine_of_table(definition), (LastRow, FirstRow)) or not FewRowsCodec.supports(definition.schema):
        return None
    return EncodedWrites(definition, definition.primary_key, has_kernel=kernel is not None)


class EncodedWrites:
    """Encoded writes of one table; see :func:`encoded_writes`.

    Attributes:
        schema, schema_id: Of the table.
        rows, records: Codecs of stored rows and of batches.
        preimages: Whether the changelog has the rows that updates replace.
        tells_inserts: Whether it tells an insert from an update; else both are updates.
        keeps_first: Whether an upsert of a key that is there does nothing; then there are no deletes.
        skips_identical: Whether an upsert of an identical row does nothing.
        native: What makes the records by the native kernel, if it can.
    """

    def __init__(self, definition: TableDefinition, key: tuple[str, ...], *, has_kernel: bool) -> None:
        self._definition = definition
        self.schema, self.schema_id = definition.schema, definition.schema_id
        self.rows = FewRowsCodec(
            *(definition.schema, key, definition.schema_id), hash=library.row_hasher() if has_kernel else None
        )
        self.records = FewRecordsEncoder(definition.schema)
        self.preimages = definition.options.changelog_image == "full"
        self.keeps_first = isinstance(engine_of_table(definition), FirstRow)
        self.tells_inserts = self.preimages or self.keeps_first
        self.skips_identical = definition.options.skip_identical_updates
        self.native = self._native() if has_kernel else None
        self._encoder = self._row_encoder() if has_kernel else None
        is_whole = self.native is not None and definition.buckets == 1
        self._intake = ArrowIntake(definition.schema) if is_whole else None
        self._places = [key.index(name) for name in definition.bucket_key or ()]

    def _native(self) -> ChangeMaker | None:
        make, table = library.record_maker(), layout_of(self._definition).flat
        if make is None or table is None:
            return None
        return ChangeMaker(
            *(make, table, self.records.template),
            preimages=self.preimages,
            inserts=self.tells_inserts,
            keeps_first=self.keeps_first,
        )

    def _row_encoder(self) -> RowEncoder | None:
        kernel, encode_few, table = library.kernel(), library.few_encoder(), layout_of(self._definition).flat
        if kernel is None or encode_few is None or table is None:
            return None
        return RowEncoder(kernel, encode_few, table)

    def upserts(self, data: Any, rows_max: int) -> list[Operation] | None:
        """Operations that store a dict or a list of dicts; None if there are others, or if one does not fit."""
        if type(data) is dict:
            operation = self.rows.upsert(data)
            return None if operation is None or len(operation.value or b"") > BYTES_MAX else [operation]
        if type(data) is not list or not 0 < len(data) <= min(rows_max, ROWS_MAX) or set(map(type, data)) != {dict}:
            return None
        return _complete(list(map(self.rows.upsert, data)))

    def deletes(self, keys: Any, rows_max: int) -> list[Operation] | None:
        """Operations that delete a key or a list of keys, values or tuples; None if one is another, or misfits."""
        listed = keys if type(keys) is list else [keys]
        if self._definition.options.delete_behavior != "allow" or not 0 < len(listed) <= min(rows_max, ROWS_MAX):
            return None
        return _complete(list(map(self.rows.delete, listed)))

    def takes(self, operations: Several[Operation]) -> bool:
        """Whether operations that another process sends are a small write."""
        if len(operations) > ROWS_MAX or bytes_of(operations) > BYTES_MAX:
            return False
        if self._definition.options.delete_behavior == "allow":
            return True
        return all(each.value is not None for each in operations)

    def operations_of(self, request: Request | SmallRequest) -> list[Operation] | None:
        """The operations of a request when its turn comes; None if it is no small write of the table as it is now."""
        if isinstance(request, SmallRequest):
            return request.operations if request.writes is self else None
        if request.count > ROWS_MAX or not self._merges(request):
            return None
        if request.skips_identical and not self.skips_identical:
            return None
        operations = self.rows.operations(request.changes.rows, request.changes.is_delete)
        return None if operations is None or bytes_of(operations) > BYTES_MAX else operations

    def encoded(self, request: Request | SmallRequest) -> Encoded | Few | None:
        """The rows of a request as they are stored, for the kernel; None if Python has to do the work."""
        if isinstance(request, SmallRequest):
            if request.writes is not self:
                return None
            return encoded_operations(request.operations, self.schema_id) if request.operations else None
        rows = request.encoded
        if rows is not None and rows.schema_id == self.schema_id:  # rows of targets are not encoded
            return None if self.keeps_first and self._is_other(request) else rows
        if not self._merges(request):
            return None
        return self.encoded_rows(request.changes)

    def encoded_rows(self, changes: Changes) -> Encoded | Few | None:
        """Whole rows as they are stored; None if Python has to encode them."""
        rows = changes.rows
        if self._encoder is None or not rows.num_rows:
            return None
        deletes = np.asarray(changes.is_delete.to_numpy(zero_copy_only=False)) if changes.is_delete.true_count else None
        return self._encoder.encoded(rows, bytes_of_rows(rows), deletes)

    def _merges(self, request: Request) -> bool:
        """Whether the request stores whole rows, as the table's engine does it."""
        changes = request.changes
        if request.targets is not None or not changes.rows.schema.equals(self._definition.schema):
            return False
        return not (self.keeps_first and self._is_other(request))

    def _is_other(self, request: Request) -> bool:
        """Whether the request does what the engine ``first_row`` does not."""
        return request.overwrite or request.changes.is_delete.true_count > 0

    def arrow(self, data: Any, rows_max: int) -> Request | None:
        """A request that stores Arrow data as it is; None if it has to be converted, divided or refused."""
        intake, encoder = self._intake, self._encoder
        rows = None if intake is None else intake.batch(data)
        if intake is None or encoder is None or rows is None or not 0 < rows.num_rows <= rows_max:
            return None
        size = bytes_of_rows(rows)
        encoded = encoder.encoded(rows, size) if size <= BATCH_BYTES else None
        if encoded is None:
            return None
        return Request(
            lambda: Changes.upserts(intake.conform(rows)), encoded=encoded, schema_id=self.schema_id, answer=Reply()
        )

    def bucket_of(self, key: Cells) -> BucketId:
        """The bucket of a key."""
        if self._definition.buckets == 1:
            return BucketId(0)
        code = b"".join([self.rows.code_of(key, place) for place in self._places])
        return BucketId(bucket_of(code, self._definition.buckets))

    def requests(self, operations: list[Operation]) -> dict[BucketId, SmallRequest]:
        """A request for each bucket that has any of the operations, in the order of buckets."""
        if self._definition.buckets == 1:
            return {BucketId(0): SmallRequest(operations, self)}
        parts: dict[BucketId, list[Operation]] = {}
        for each in operations:
            parts.setdefault(self.bucket_of(each.key), []).append(each)
        return {bucket: SmallRequest(part, self) for bucket, part in sorted(parts.items())}


@dataclass(slots=True, eq=False)  # frozen would make setting its fields slow
class SmallRequest:
    """A small write, and its answer.

    Attributes:
        operations: At least one, but for a part of a commit.
        writes: Of the table's definition as it was when the request was made.
        writer_id, sequence, writer_epoch: See :class:`kvstore.request.request.Request`.
        stored: What the key of each operation has when its turn comes, empty where there is nothing, if that was looked
            up before.
    """

    operations: list[Operation]
    writes: EncodedWrites
    answer: Reply[Any] | Future[Any] = field(default_factory=Reply)
    writer_id: WriterId = NO_WRITER
    sequence: Sequence = NO_SEQUENCE
    writer_epoch: Epoch = NO_EPOCH
    stored: list[bytes] | None = None

    @property
    def count(self) -> int:
        """Number of operations."""
        return len(self.operations)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return bytes_of(self.operations)

    def request(self) -> Request:
        """The same for the long way; no caller waits for its answer."""
        rows = [(each.key, each.value) for each in self.operations]
        batch = self.writes.records.rows(len(rows), self.writes.rows.columns(rows))
        changes = Changes(batch, pa.array([each.value is None for each in self.operations], pa.bool_()))
        return Request(changes, self.writer_id, self.sequence, self.writer_epoch, None, schema_id=self.writes.schema_id)


@dataclass(slots=True, kw_only=True, eq=False)
class SmallConditional(ConditionalRequest):
    """A conditional request about a few keys, decided by the stored bytes.

    Attributes:
        operations_on: Returns operations, on these keys or others, or None if nothing is to be written, given the value
            that is there for each key, which is long enough but not verified yet; None if there is none. It may raise
            InvalidRequest and nothing else.
        writes: Of the table's definition as it was when the request was made. If it is another one when the request's
            turn comes, or a stored row is of another schema, ``decide`` decides.
        sums: What it adds, if that is all that it does to a row of its only key; then another process can do it.
    """

    operations_on: Callable[[list[bytes | None]], list[Operation] | None]
    writes: EncodedWrites
    sums: StoredSums | None = None


@dataclass(frozen=True, slots=True)
class AddedRequest:
    """A request of another process that adds numbers to the row of one key, if there is one when its turn comes.

    A duplicate gets its first answer.

    Attributes:
        sums: What is added.
        then: A request without rows, which has its writer, sequence and epoch.
        found: What is stored for the key, if nothing was written.
        stored: What was stored by it.
    """

    sums: StoredSums
    then: SmallRequest
    answer: Reply[Any] | Future[AppendResult | None] = field(default_factory=Answer)
    found: list[bytes] = field(default_factory=list)
    stored: list[Operation] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.sums.key.code)

    def decided(self, definition: TableDefinition, get: Callable[[list[bytes]], list[bytes]]) -> SmallRequest | None:
        """What it writes; None if the row is not there, of an earlier schema, or too large for an answer.

        Raises:
            InvalidRequest: A sum does not fit.
            CorruptData: It would not, and the row is damaged. Any other is verified when it is merged.
        """
        writes, key = self.then.writes, self.sums.key.code
        if writes is not encoded_writes(definition):
            return None
        (stored,) = get([key])
        self.found[:] = [stored]
        if not stored or len(stored) > ADDED_BYTES_MAX or not writes.rows.is_whole(stored):
            return None
        try:
            self.stored[:] = [self.sums.operation(stored)]
        except InvalidRequest:
            writes.rows.hash_of(key, stored)
            raise
        return replace(self.then, operations=self.stored, stored=self.found)


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """A request that takes effect if the stored rows of some keys are the expected ones when its turn comes.

    A duplicate gets its first answer, whatever is stored by then.

    Attributes:
        keys: Encoded keys.
        stored: For each the bytes that are expected; empty if there is to be no row.
        then: The request; no caller waits for its own answer.
        found: What is stored, once the answer is that it is something else.
    """

    keys: list[bytes]
    stored: list[bytes]
    then: Request | SmallRequest
    answer: Reply[Any] | Future[AppendResult | None] = field(default_factory=Answer)
    found: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.then.size + sum(map(len, self.stored))

    def decided(self, _: TableDefinition, get: Callable[[list[bytes]], list[bytes]]) -> Request | SmallRequest | None:
        """What it writes; None if something else is stored."""
        self.found[:] = get(self.keys)
        return self.then if self.found == self.stored else None


Submitted: TypeAlias = Request | SmallRequest | ConditionalRequest | ComparedRequest | AddedRequest
"""What a bucket's queue takes of one caller."""


def counted(
    request: Request | SmallRequest, writer_id: WriterId, epoch: Epoch, sequence: Sequence
) -> Request | SmallRequest:
    """A request as one of a writer, with an answer of its own."""
    given: dict[str, Any] = {"writer_id": writer_id, "writer_epoch": epoch, "sequence": sequence}
    if isinstance(request, SmallRequest):
        return replace(request, answer=Reply(), **given)
    return replace(request, answer=Answer(), **given)


def bytes_of(operations: Several[Operation]) -> int:
    """Bytes of the values of operations."""
    return sum([len(each.value) for each in operations if each.value is not None])


def _complete(operations: list[Operation | None]) -> list[Operation] | None:
    complete = [each for each in operations if each is not None]
    return complete if len(complete) == len(operations) and bytes_of(complete) <= BYTES_MAX else None


def encoded_operations(operations: Several[Operation], schema_id: SchemaId) -> Encoded | Few:
    """Operations of rows that are encoded already, at least one."""
    names = [each.code for each in operations]
    values = [each.value or b"" for each in operations]
    if len(names) <= FEW_MAX and len(set(names)) == len(names):
        return Few(names, values, schema_id)
    grouping = group(BinaryColumn.from_list(names))
    column = BinaryColumn.from_list(values)
    return Encoded(grouping.keys, grouping.order, grouping.starts, grouping.lasts, column, schema_id)
