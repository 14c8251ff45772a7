"""Pruning: the ranges of keys, and of offsets in a log, in which a filter can be true.

A filter of which every part is a comparison says by itself where the keys are. For any other, Arrow decides: the keys
are divided into ranges, and for each range Arrow evaluates whether the filter can be true for keys between the range's
ends. Ranges in which only some parts can match are divided again. Keys are divided where the pages of the index begin,
so it takes as many steps as the tree has levels, whatever the keys are. A log is divided between batches, whose offset,
version and time are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import compress, islice, pairwise, repeat
from operator import and_
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.index.index import View
from kvstore.index.leaves import Leaves
from kvstore.indexing.filters import Understood, has_nan, understood
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.read.ranges import sought
from kvstore.read.scan import KeyRange, common
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId, Offset
from logformat.rows.python_values import MISFITS

PARTS = 16
"""Number of parts that a range is divided into."""
WHOLE_PARTS_MIN = 3
"""A range is not divided again if all its parts, at least so many, and most of the keys between them can match."""
RUNS_MAX = 16
"""More ranges of keys are only divided again while they have"""
RUN_LEAVES = 256
"""leaves each: to read so many at once takes as long as to divide them."""

Place = TypeVar("Place", bytes, Offset)


def ranges_where(
    view: View,
    definition: TableDefinition,
    filter: pc.Expression,
    known: Understood | None = None,
    *,
    beyond: bool = False,
) -> list[KeyRange]:
    """Disjoint ranges of keys, in order; no row outside of them passes the filter.

    Args:
        known: What is understood of the filter, if the caller has asked.
        beyond: Include keys before the current first key and after the last one: earlier states may have had rows
            there.
    """
    bounds = view.bounds()
    if bounds is None:
        return [KeyRange()] if beyond else []
    known = known or understood(filter, definition.schema)
    keys = sought(definition, known.conditions)
    if keys is not None and known.comparisons is not None and len(keys.ranges) <= RUNS_MAX:
        of_key = {*layout_of(definition).key_names}
        if keys.columns == len(of_key.intersection(each.column for each in known.conditions)):
            whole = KeyRange() if beyond else KeyRange(bounds[0], bounds[1] + b"\0")
            return [each for each in (common(each, whole) for each in keys.ranges) if each is not None]
    ranges = [bounds] if view.leaves is None else _pages_where(view.leaves, bounds, definition, filter)
    kept = [KeyRange(first, last + b"\0") for first, last in _joined(sorted(ranges))]
    return _with_outside(kept, bounds, definition, filter) if beyond else kept


def _pages_where(
    leaves: Leaves, bounds: tuple[bytes, bytes], definition: TableDefinition, filter: pc.Expression
) -> list[tuple[bytes, bytes]]:
    """Ranges of keys, as first and last key, in which the filter can be true, found from the tree's root downwards.

    What is read of the tree depends on its depth and on the number of ranges, not on the number of rows.
    """
    done: list[tuple[bytes, bytes]] = []
    runs = [leaves.run_between(*bounds)]
    while runs and (len(runs) <= RUNS_MAX or sum(run.leaves for run in runs) > RUN_LEAVES * len(runs)):
        divided = [leaves.divided(run, PARTS) for run in runs]
        flags = iter(_possible([(part.first, part.last) for parts in divided for part in parts], definition, filter))
        left = [list(compress(parts, flags)) for parts in divided]
        whole = [len(parts) == len(some) >= WHOLE_PARTS_MIN for parts, some in zip(divided, left, strict=True)]
        cuts = [[part.first for part in parts[1:]] for parts in compress(divided, whole)]
        at_cuts = iter(_possible([(cut, cut) for some in cuts for cut in some], definition, filter))
        dense = (2 * sum(islice(at_cuts, len(some))) > len(some) for some in cuts)
        runs = []
        for some, is_whole in zip(left, whole, strict=True):
            if is_whole and next(dense):
                done.append((some[0].first, some[-1].last))
            else:
                done += ((part.first, part.last) for part in some if part.leaves == 1)
                runs += (part for part in some if part.leaves > 1)
    return [*done, *((run.first, run.last) for run in runs)]


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

    def moment(number: int) -> _Moment | None:
        if number not in known and (header_there := log.marked(marks[number - 1])) is not None:
            known[number] = _Moment(
                header_there.header.base_offset, header_there.header.base_offset, header_there.header.commit_timestamp
            )
        return known.get(number)

    def possible(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        guarantees = [_guarantee(bucket, known[first], known[last], back) for first, last in parts]
        return [parts[number] for number in possible_places(guarantees, schema, filter)]

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
    within: list[KeyRange], bounds: tuple[bytes, bytes], definition: TableDefinition, filter: pc.Expression
) -> list[KeyRange]:
    """Adds the ranges before the first key and after the last, if the filter can be true there."""
    layout = layout_of(definition)
    field = pc.field(layout.key_names[0])
    low, high = layout.keys.decode(BinaryColumn.from_list(list(bounds)))[0]
    outside = possible_places([field <= low, field >= high], definition.schema, filter)
    before = [KeyRange(stop=bounds[0])] if 0 in outside else []
    after = [KeyRange(bounds[1] + b"\0")] if 1 in outside else []
    return [*before, *within, *after]


def _possible(ranges: Sequence[tuple[bytes, bytes]], definition: TableDefinition, filter: pc.Expression) -> list[bool]:
    """For each range, as first and last key, whether the filter can be true in it."""
    if not ranges:
        return []
    layout = layout_of(definition)
    fields = [pc.field(name) for name in layout.key_names]
    lows, highs = (layout.keys.decode(BinaryColumn.from_list(list(keys))) for keys in zip(*ranges, strict=True))
    guarantees = list(map(_between, repeat(fields), zip(*lows, strict=True), zip(*highs, strict=True)))
    numbers = set(possible_places(guarantees, definition.schema, filter))
    return [number in numbers for number in range(len(ranges))]


def _between(fields: Sequence[pc.Expression], low: Sequence[pa.Scalar], high: Sequence[pa.Scalar]) -> pc.Expression:
    """What is true of the columns of every key between two: equal up to the first column in which the two differ."""
    known = []
    for field, least, most in zip(fields, low, high, strict=True):
        if not least.equals(most):
            known.append((field >= least) & (field <= most))
            break
        known.append(field == least)
    return reduce(and_, known)


def possible_places(guarantees: Sequence[pc.Expression], schema: pa.Schema, filter: pc.Expression) -> list[int]:
    """Indices of the guarantees under which the filter can be true."""
    if has_nan(filter):
        return list(range(len(guarantees)))  # Arrow takes it for a number that is greater than all
    import pyarrow.dataset as ds  # it imports pandas where there is one, which takes longer than all of kvstore
    from pyarrow.fs import LocalFileSystem

    # Arrow prunes the fragments of a dataset by their guarantees, without opening the files, which do not exist.
    format, files = ds.ParquetFileFormat(), LocalFileSystem()
    parts = [
        format.make_fragment(str(number), files, partition_expression=guarantee)
        for number, guarantee in enumerate(guarantees)
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
