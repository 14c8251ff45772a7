"""Joins small requests of one group into one request, so that one pass over the index serves all of them.

A pass costs nearly the same for ten rows as for one. Operations take effect in order, across requests, so one pass over
several requests has the same result as a pass for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from kvstore.request.grouping import grouped
from kvstore.request.request import Request
from kvstore.request.row_layout import TableLayout
from kvstore.request.targets import filled
from logformat.ids import NO_SEQUENCE, NO_WRITER, Epoch, WriterId, next_sequence
from logformat.rows.changes import Changes

ROWS_MAX = 4096
"""Largest number of rows of joined requests; more would gain nothing."""


def beginning(requests: Iterable[Request], fits: Callable[[Request], bool], is_new: Callable[[Request], bool]) -> int:
    """Number of requests, from the first on, that can be joined: each is certain to be applied.

    Args:
        fits: Whether a request may be joined with others at all.
        is_new: Whether it is the next request of its writer, after those applied before all of these.
    """
    rows = count = 0
    latest: dict[WriterId, Request] = {}
    for request in requests:
        rows += len(request.changes)
        if rows > ROWS_MAX or not fits(request) or not _is_next(request, latest.get(request.writer_id), is_new):
            break
        if request.writer_id != NO_WRITER:
            latest[request.writer_id] = request
        count += 1
    return count


def joined(requests: Sequence[Request], layout: TableLayout) -> Request:
    """One request with the operations of several, whose rows are stored unchanged; no caller waits for its answer."""
    if len(requests) == 1 and requests[0].grouping is not None:
        return requests[0]
    rows = pa.concat_batches([filled(request.changes.rows, layout.schema) for request in requests])
    is_delete = pa.concat_arrays([request.changes.is_delete for request in requests])
    grouping = grouped(layout, rows)
    return Request(Changes(rows, is_delete), NO_WRITER, NO_SEQUENCE, Epoch(0), grouping, overwrite=True)


def _is_next(request: Request, before: Request | None, is_new: Callable[[Request], bool]) -> bool:
    if before is not None:
        follows = request.sequence == next_sequence(before.sequence)
        return follows and request.writer_epoch == before.writer_epoch
    return is_new(request)
