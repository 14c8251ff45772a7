"""A batch on its way into a bucket, prepared as far as possible before its turn comes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kvstore.meta.state import TableDefinition
from kvstore.process.calls import Answer, Reply
from kvstore.request.results import AppendResult
from kvstore.request.sizes import bytes_of
from logformat.binary_column import BinaryColumn
from logformat.ids import NO_SEQUENCE, NO_WRITER, Epoch, SchemaId, Sequence, WriterId
from logformat.rows.changes import Changes
from logformat.rows.ordering import in_order

if TYPE_CHECKING:
    from kvstore.kernel.writes import Encoded, Few

NO_EPOCH = Epoch(0)


@dataclass(frozen=True, slots=True)
class Grouping:
    """The operations of a batch, grouped by key.

    Attributes:
        keys: The *m* different keys, sorted.
        order, starts, lasts: See :class:`merge_engines.engine.Operations`.
    """

    keys: BinaryColumn
    order: np.ndarray
    starts: np.ndarray
    lasts: np.ndarray


@dataclass(slots=True, eq=False)  # frozen would make setting its fields slow
class Request:
    """One batch and its answer.

    Attributes:
        given: The changes, or for encoded rows a function that makes them; see :attr:`changes`.
        grouping: None for a log table, for encoded rows, and for a few rows, which are grouped when their turn comes.
        targets: Columns the request names, which may be all there were when it was made; None: whole rows.
        overwrite: Whether rows are stored as they come, whatever the table's engine.
        schema_id: The schema by which its columns are called; None for the present one.
        skips_identical: Whether updates that change nothing leave no change, also if the table records them. If its
            commit is completed by another process, they do.
        encoded: The changes as they are stored, if the kernel has encoded them.
    """

    given: Changes | Callable[[], Changes]
    writer_id: WriterId = NO_WRITER
    sequence: Sequence = NO_SEQUENCE
    writer_epoch: Epoch = NO_EPOCH
    grouping: Grouping | None = None
    targets: frozenset[str] | None = None
    overwrite: bool = False
    schema_id: SchemaId | None = None
    skips_identical: bool = False
    encoded: Encoded | Few | None = None
    answer: Reply[AppendResult] | Future[AppendResult] = field(default_factory=Answer)

    @property
    def changes(self) -> Changes:
        """In one of the table's schemas; of a partial request, null in every column that is no target."""
        if not isinstance(self.given, Changes):
            self.given = self.given()
        return self.given

    @property
    def count(self) -> int:
        """Number of operations."""
        return len(self.changes) if self.encoded is None else len(self.encoded.values)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return bytes_of(self.changes.rows) if self.encoded is None else self.encoded.size


@dataclass(slots=True, eq=False)  # frozen would make setting its fields slow
class ConditionalRequest:
    """A write that depends on the stored rows of some keys, as they are when its turn comes.

    Attributes:
        keys: The keys, encoded, each once.
        decide: Returns the changes, or None if nothing is to be written, given the current definition of the table and
            the rows that are there. It may raise InvalidRequest and nothing else, and the bucket waits for it.
        definition: The table when the request was made: ``decide`` knows columns by the names that they have there.
    """

    keys: list[bytes]
    decide: Callable[[TableDefinition, pa.RecordBatch], Changes | None]
    definition: TableDefinition
    answer: Reply[AppendResult | None] | Future[AppendResult | None] = field(default_factory=Answer)

    @property
    def size(self) -> int:
        """Lower bound of the size in bytes."""
        return sum(map(len, self.keys))


_FIRST = np.zeros(1, np.int64)


def group(keys: BinaryColumn) -> Grouping:
    """Group operations by key; those of one key keep their order."""
    if len(keys) < 2:
        first = _FIRST[: len(keys)]
        return Grouping(keys, first, first, first)
    order, differs = in_order(keys)
    if differs.all():
        starts = lasts = np.arange(len(order))
    else:
        inner = np.flatnonzero(differs)
        starts, lasts = np.append(0, inner + 1), np.append(inner, len(order) - 1)
    return Grouping(keys.take(order[starts]), order, starts, lasts)
