"""A batch on its way into a bucket, with all that can be done before its turn comes."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.table.results import AppendResult
from logformat import octets
from logformat.changes import Changes
from logformat.ids import Epoch, SchemaId, Sequence, WriterId
from logformat.keys import ROW
from logformat.octets import Octets

_WORD = 8


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
        changes: In the schema of ``schema_id``.
        grouping: None for a log table.
    """

    changes: Changes
    schema_id: SchemaId
    writer_id: WriterId
    sequence: Sequence
    writer_epoch: Epoch
    grouping: Grouping | None
    answer: Future[AppendResult] = field(default_factory=Future)


def group(keys: Octets) -> Grouping:
    """Bring the operations on one key together; those of one key stay in the order they came."""
    if pa.types.is_fixed_size_binary(keys.type) and keys.type.byte_width <= len(ROW) + _WORD:
        # A short key is a number: numpy sorts those ten times faster than byte strings.
        matrix = octets.to_matrix(keys)[:, len(ROW) :]
        numbers = np.zeros((len(matrix), _WORD), np.uint8)
        numbers[:, _WORD - matrix.shape[1] :] = matrix
        flat = numbers.view(">u8").ravel().astype(np.uint64)
        order = np.argsort(flat)
        differs = np.diff(flat[order]) != 0
        if not differs.all():
            order = np.argsort(flat, kind="stable")  # slower, and of no use while every key is there once
    else:
        order = pc.array_sort_indices(keys).to_numpy().astype(np.int64)
        ordered = keys.take(pa.array(order))
        differs = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    inner = np.flatnonzero(differs)
    there = min(len(order), 1)
    starts = np.concatenate([np.zeros(there, np.int64), inner + 1])
    lasts = np.concatenate([inner, np.full(there, len(order) - 1)])
    return Grouping(keys.take(pa.array(order[starts])), order, starts, lasts)
