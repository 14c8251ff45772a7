"""Which of some keys were changed in a range of the log: what a patch or a statement asks before it is applied."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.history.past import Past
from kvstore.read.changelog import changes_between
from kvstore.request.row_layout import layout_of
from logformat.ids import BucketId, Offset, SchemaId


def keys_changed(
    past: Past,
    keys: pa.RecordBatch,
    start: Mapping[int, int],
    end: Mapping[int, int] | None,
    schema_id: int,
    since: str,
) -> tuple[pa.RecordBatch, dict[int, int]]:
    """See :meth:`kvstore.table.parts.TableParts.keys_changed`."""
    with past.reading():
        if end is None:
            ranges = {bucket: past.range_of(bucket, start, "latest")[:2] for bucket in past.buckets}
        else:
            # Without a look at the index: the caller may be the one who keeps its bucket waiting.
            ranges = {BucketId(bucket): (Offset(start[bucket]), Offset(stop)) for bucket, stop in end.items()}
        definition = past.latest()
        definition.check_names_of(SchemaId(schema_id), since)
        layout = layout_of(definition)
        wanted = layout.encode_keys(keys).to_arrow()
        parts = [pa.array([], pa.binary())]
        for bucket, (begin, stop) in ranges.items():
            batches = past.handles[bucket].log.batches(begin, stop)
            for rows in changes_between(batches, definition, bucket, begin, stop, layout.key_names):
                encoded = layout.encode_keys(rows).to_arrow()
                parts.append(encoded.filter(pc.is_in(encoded, wanted)))
    changed = pc.is_in(wanted, pa.chunked_array(parts).unique())
    return keys.filter(changed), {int(bucket): int(stop) for bucket, (_, stop) in ranges.items()}
