"""Pruning: the ranges of keys, and of offsets in a log, in which a filter can be true.

Arrow decides: the keys are divided into ranges, and for each range Arrow evaluates whether the filter can be true for
values of the first key column between the range's ends. Ranges in which only some parts can match are divided again. A
log is divided between batches, whose offset, version and time are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.index.index import View
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.read.scan import KeyRange, evenly_between
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId, Offset
from logformat.rows.python_values import MISFITS

PARTS = 16
"""Number of parts that a range is divided into,"""
CUTS_MAX = 8
"""and the maximum number of times that parts are divided again."""

Place = TypeVar("Place", bytes, Offset)


def ranges_where(
    view: View, definition: TableDefinition, filter: pc.Expression, *, beyond: bool = False
) -> list[KeyRange]:
    """Disjoint ranges of keys, in order; no row outside of them passes the filter.

    Args:
        beyond: Include keys before the current first key and after the last one: earlier states may have had rows
            there.
    """
    bounds = view.bounds()
    if bounds is None:
        return [KeyRange()] if beyond else []
    ranges = _possible([bounds], definition, filter)
    done: list[tuple[bytes, bytes]] = []
    for _ in range(CUTS_MAX):
        smaller = []
        for first, last in ranges:
            parts = list(pairwise([first, *_keys_between(view, first, last), last]))
            possible = _possible(parts, definition, filter)
            if len(possible) == len(parts):
                done.append((first, last))
            else:
                smaller += possible
        ranges = smaller
    found = [KeyRange(first, last + b"\0") for first, last in _joined(sorted([*done, *ranges]))]
    return _with_outside(found, bounds, definition, filter) if beyond else found


def offsets_where(
    log: LogFiles,
    schema: pa.Schema,
    filter: pc.Expression,
    bucket: BucketId,
    start: Offset,
    end: Offset,
    last_timestamp: int,
) -> list[tuple[Offset, Offset]]:
    """Disjoint ranges of offsets, in order; no change outside of them passes the filter.

    Args:
        schema: Schema of the changelog or binlog that the filter is for.
        start, end: The range to read; not empty.
        last_timestamp: Upper limit (ms) of the timestamps of commits before ``end``.
    """
    marks, back = log.marks(start, end), log.back_offset()
    header = next(log.batches(start, end)).header
    known: dict[int, _Moment] = {
        0: _Moment(start, header.base_offset, header.commit_timestamp),
        len(marks) + 1: _Moment(end, end, last_timestamp),
    }

    def moment(place: int) -> _Moment | None:
        if place not in known and (found := log.marked(marks[place - 1])) is not None:
            known[place] = _Moment(found.header.base_offset, found.header.base_offset, found.header.commit_timestamp)
        return known.get(place)

    def possible(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        guarantees = [_guarantee(bucket, known[first], known[last], back) for first, last in parts]
        return [parts[place] for place in possible_places(guarantees, schema, filter)]

    ranges = possible([(0, len(marks) + 1)])
    done: list[tuple[int, int]] = []
    while ranges:
        smaller = []
        for first, last in ranges:
            cuts = {first + (last - first) * part // PARTS for part in range(1, PARTS)} - {first}
            parts = list(pairwise([first, *(cut for cut in sorted(cuts) if moment(cut)), last]))
            left = possible(parts)
            if len(left) == len(parts):
                done.append((first, last))
            else:
                smaller += left
        ranges = smaller
    return list(_joined((known[first].offset, known[last].offset) for first, last in sorted(done)))


@dataclass(frozen=True, slots=True)
class _Moment:
    """One end of a range of offsets: the offset, its batch, and the batch's commit timestamp (ms)."""

    offset: Offset
    version: Offset
    timestamp: int


def _guarantee(bucket: BucketId, first: _Moment, last: _Moment, back: Offset) -> pc.Expression:
    """What is true of every change between two moments.

    Args:
        back: Only from here on no commit timestamp is less than the one before.
    """
    low, high = (pa.scalar(each.timestamp * 1000, pa.timestamp("us", "UTC")) for each in (first, last))
    offset, version, time = (pc.field(name) for name in ("_log_offset", "_commit_version", "_commit_timestamp"))
    places = (
        (pc.field("_bucket") == pa.scalar(bucket, pa.int32()))
        & ((offset >= first.offset) & (offset <= last.offset - 1))
        & ((version >= first.version) & (version <= last.offset - 1))
    )
    return places & ((time >= low) & (time <= high)) if first.version >= back else places


def _with_outside(
    found: list[KeyRange], bounds: tuple[bytes, bytes], definition: TableDefinition, filter: pc.Expression
) -> list[KeyRange]:
    """Adds the ranges before the first key and after the last, if the filter can be true there."""
    layout = layout_of(definition)
    field = pc.field(layout.key_names[0])
    low, high = layout.keys.decode(BinaryColumn.from_list(list(bounds)))[0]
    outside = possible_places([field <= low, field >= high], definition.schema, filter)
    before = [KeyRange(stop=bounds[0])] if 0 in outside else []
    after = [KeyRange(bounds[1] + b"\0")] if 1 in outside else []
    return [*before, *found, *after]


def _keys_between(view: View, first: bytes, last: bytes) -> list[bytes]:
    """Keys that divide a range into parts; empty if there are none inside."""
    found = map(view.first_from, evenly_between(first, last, PARTS))
    return sorted({key for key in found if key is not None and first < key < last})


def _possible(
    ranges: Sequence[tuple[bytes, bytes]], definition: TableDefinition, filter: pc.Expression
) -> list[tuple[bytes, bytes]]:
    """The ranges, as first and last key, in which the filter can be true."""
    layout = layout_of(definition)
    field = pc.field(layout.key_names[0])
    lows, highs = (layout.keys.decode(BinaryColumn.from_list(list(keys)))[0] for keys in zip(*ranges, strict=True))
    guarantees = [(field >= low) & (field <= high) for low, high in zip(lows, highs, strict=True)]
    return [ranges[place] for place in possible_places(guarantees, definition.schema, filter)]


def possible_places(guarantees: Sequence[pc.Expression], schema: pa.Schema, filter: pc.Expression) -> list[int]:
    """Indices of the guarantees under which the filter can be true."""
    import pyarrow.dataset as ds  # it imports pandas where there is one, which takes longer than all of kvstore
    from pyarrow.fs import LocalFileSystem

    # Arrow prunes the fragments of a dataset by their guarantees, without opening the files, which do not exist.
    format, files = ds.ParquetFileFormat(), LocalFileSystem()
    parts = [
        format.make_fragment(str(place), files, partition_expression=guarantee)
        for place, guarantee in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(parts, schema, format, files)
    try:
        return [int(part.path) for part in dataset.get_fragments(filter=filter)]
    except MISFITS:
        return list(range(len(guarantees)))  # the filter fails for some key; the reader of the rows reports it


def _joined(ranges: Iterable[tuple[Place, Place]]) -> Iterator[tuple[Place, Place]]:
    """Merge adjoining ranges, so that no row is in two."""
    waiting: tuple[Place, Place] | None = None
    for first, last in ranges:
        if waiting is not None and first <= waiting[1]:
            waiting = waiting[0], last
            continue
        if waiting is not None:
            yield waiting
        waiting = first, last
    if waiting is not None:
        yield waiting
