"""A batch on its way into a bucket, with all that can be done before its turn comes."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvstore.request.results import AppendResult
from kvstore.request.sizes import bytes_of
from logformat.binary_column import Octets
from logformat.ids import Epoch, Sequence, WriterId
from logformat.rows.changes import Changes
from logformat.rows.ordering import in_order


@dataclass(frozen=True, slots=True)
class Grouping:
    """The operations of a batch by key.

    Attributes:
        keys: The *m* different keys, in order.
        order, starts, lasts: See :class:`merge_engines.engine.Operations`.
    """

    keys: Octets
    order: np.ndarray
    starts: np.ndarray
    lasts: np.ndarray


@dataclass(frozen=True, slots=True)
class Request:
    """One batch, and where its answer goes.

    Attributes:
        changes: In one of the table's schemas; of a partial request, null in every column that is no target.
        grouping: None for a log table, and for a few rows, which are grouped with others when their turn comes.
        targets: Columns the request names, which may be all there were when it was made; None: whole rows.
        overwrite: Whether rows are stored as they come, whatever the table's engine.
    """

    changes: Changes
    writer_id: WriterId
    sequence: Sequence
    writer_epoch: Epoch
    grouping: Grouping | None
    targets: frozenset[str] | None = None
    overwrite: bool = False
    answer: Future[AppendResult] = field(default_factory=Future)

    @property
    def size(self) -> int:
        """Bytes."""
        return bytes_of(self.changes.rows)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One row to be stored, which is taken in with others when its turn comes.

    Attributes:
        row: As it was given; nobody else has it.
    """

    row: dict[str, Any]
    answer: Future[AppendResult] = field(default_factory=Future)

    @property
    def size(self) -> int:
        """Bytes, at least."""
        return sum(len(value) for value in self.row.values() if isinstance(value, (str, bytes)))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that is applied and not yet appended, while it is decided whether the commit it is a part of takes place.

    Attributes:
        decision: Whether it is appended; all parts have the same. Until then the bucket stands still.
        ready: What its answer would be; an error if it can't be applied, and then it is over.
    """

    request: Request
    decision: Future[bool]
    ready: Future[AppendResult] = field(default_factory=Future)

    @property
    def answer(self) -> Future[AppendResult]:
        """What came of it, if it was decided that it takes place."""
        return self.request.answer


_FIRST = np.zeros(1, np.int64)


def group(keys: Octets) -> Grouping:
    """Bring the operations on one key together; those of one key stay in the order they came."""
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
