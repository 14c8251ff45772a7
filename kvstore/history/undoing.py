"""Changes that undo all changes since a place, or only those of a range, a writer, an epoch or a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import UnsupportedOperation
from kvstore.history.past import Past, check_start
from kvstore.history.selection import Selection
from kvstore.history.unpicking import unpicked
from kvstore.log.segments import FoundBatch
from kvstore.meta.state import TableDefinition
from kvstore.read.binlog import AFTER, BEFORE, binlog_of, binlog_schema
from kvstore.read.changelog import End, Start, changes_between
from kvstore.read.time_travel import check_undoable, first_changes
from kvstore.request.request import group
from kvstore.request.row_layout import layout_of
from logformat.ids import BucketId, Offset
from logformat.rows.changes import Changes
from logformat.rows.intake import empty

_OFFSET, _VERSION, _KIND = "_log_offset", "_commit_version", "_change_type"


@dataclass(frozen=True)
class Undo(Changes):
    """Changes that undo others; made by :meth:`kvstore.Table.undo`.

    Attributes:
        conflicts: The keys whose rows stay as they are, because another change came after the undone one and changed
            the same columns.
        offsets: For each bucket, the end of the log that was read: later changes are not known here.
        schema_id: Schema of the rows.
        undone: What they undo: ``start`` and ``end`` by bucket, and ``writer``, ``epoch``, ``job`` or ``task``.
    """

    conflicts: pa.RecordBatch = field(default_factory=lambda: pa.record_batch([], names=[]))
    offsets: Mapping[int, int] = field(default_factory=dict)
    schema_id: int = 0
    undone: Mapping[str, Any] = field(default_factory=dict)


def undo_of(past: Past, start: Start, end: End | None, selection: Selection) -> Undo:
    """Changes that undo those of a range; see :meth:`kvstore.Table.undo`."""
    check_undoable(past.current())
    check_start(start)
    is_all = selection.is_all and (end is None or (isinstance(end, str) and end == "latest"))
    if not is_all:
        check_separable(past.current())
    with past.reading():
        ranges = {bucket: past.range_of(bucket, start, "latest" if end is None else end) for bucket in past.buckets}
        definition = past.latest()  # read after the ranges, so that it has the schemas of all changes
        offsets = {int(bucket): int(now) for bucket, (_, _, now) in ranges.items()}
        undone = {
            "start": {int(bucket): int(begin) for bucket, (begin, _, _) in ranges.items()},
            "end": {int(bucket): int(stop) for bucket, (_, stop, _) in ranges.items()},
            **selection.described(),
        }
        if is_all:
            changes = first_changes(_all_changes(past, definition, ranges), definition).undo()
            conflicts = empty(layout_of(definition).key_schema)
        else:
            changes, conflicts = _part(past, definition, ranges, selection)
            selection.check_found()
    return Undo(changes.rows, changes.is_delete, conflicts, offsets, definition.schema_id, undone)


def check_separable(definition: TableDefinition) -> None:
    """Refuse a table in which a change depends on the row before it.

    Raises:
        UnsupportedOperation: It merges rows.
    """
    if definition.options.merge_engine != "last_row":
        raise UnsupportedOperation(
            "The merge engine of this table computes each row from the one before, so some changes can't be undone"
            " while later ones stay; undo everything since a place, by `start` alone.",
            table=definition.name,
            merge_engine=definition.options.merge_engine,
        )


_Ranges = Mapping[BucketId, tuple[Offset, Offset, Offset]]


def _all_changes(past: Past, definition: TableDefinition, ranges: _Ranges) -> Iterator[pa.RecordBatch]:
    names = [_KIND, *definition.schema.names]
    for bucket, (begin, _, now) in ranges.items():
        batches = past.handles[bucket].log.batches(begin, now)
        yield from changes_between(batches, definition, bucket, begin, now, names, whole_updates=True)


def _part(
    past: Past, definition: TableDefinition, ranges: _Ranges, selection: Selection
) -> tuple[Changes, pa.RecordBatch]:
    """Changes that undo the selected ones, and the keys in conflict."""
    schema, key = binlog_schema(definition), layout_of(definition)
    origins = past.origins()
    parts, flags = [pa.RecordBatch.from_pylist([], schema)], [np.zeros(0, bool)]
    for bucket, (begin, stop, now) in ranges.items():
        log, taken = past.handles[bucket].log, set[Offset]()

        def chosen(batches: Iterable[FoundBatch], taken: set[Offset] = taken) -> Iterator[FoundBatch]:
            for each in batches:
                if each.header.record_count and selection.takes(origins.of(each.header)):
                    taken.add(each.header.base_offset)
                    yield each

        names = list(key.key_names)
        its_keys = changes_between(
            chosen(log.batches(begin, stop)), definition, bucket, begin, stop, names, whole_updates=True
        )
        wanted = pa.chunked_array([key.encode_keys(rows).to_arrow() for rows in its_keys], pa.binary()).unique()
        if not len(wanted):
            continue
        begin = min(taken)  # earlier changes decide nothing
        later_changes = changes_between(log.batches(begin, now), definition, bucket, begin, now, whole_updates=True)
        related = (rows.filter(pc.is_in(key.encode_keys(rows).to_arrow(), wanted)) for rows in later_changes)
        versions = np.array(sorted(taken))
        for changes in binlog_of(related, schema):
            parts.append(changes)
            within = changes.column(_OFFSET).to_numpy() < stop
            flags.append(within & np.isin(changes.column(_VERSION).to_numpy(), versions))
    changes = pa.concat_batches(parts)
    exists = {name: changes.column(name).is_valid().to_numpy(zero_copy_only=False) for name in (BEFORE, AFTER)}
    rows = {name: _rows(changes.column(name)) for name in (BEFORE, AFTER)}
    whole = [pc.coalesce(rows[AFTER].column(name), rows[BEFORE].column(name)) for name in key.key_names]
    keys = pa.RecordBatch.from_arrays(whole, schema=key.key_schema)
    grouping = group(key.encode_keys(keys))
    done = unpicked(rows[BEFORE], rows[AFTER], exists[BEFORE], exists[AFTER], np.concatenate(flags), grouping)
    found_rows = pa.RecordBatch.from_arrays(done.rows.columns, schema=definition.schema)
    return Changes(found_rows, pa.array(done.removed)), keys.take(pa.array(done.conflicts))


def _rows(images: pa.StructArray) -> pa.RecordBatch:
    """The rows of one image; all columns are null where there is none."""
    columns = [images.field(number) for number in range(images.type.num_fields)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(images.type)))
