"""Which of some keys were changed in a range of the log: what a patch asks before it is applied."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import SchemaMismatch
from kvstore.history.past import Past
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import changes_between
from kvstore.request.row_layout import layout_of
from logformat.ids import BucketId, Offset, SchemaId


def keys_changed(
    past: Past, keys: pa.RecordBatch, start: Mapping[int, int], end: Mapping[int, int] | None, schema_id: int
) -> tuple[pa.RecordBatch, dict[int, int]]:
    """See :meth:`kvstore.history.reads.HistoryReads.keys_changed`."""
    with past.reading():
        if end is None:
            ranges = {bucket: past.range_of(bucket, start, "latest")[:2] for bucket in past.buckets}
        else:
            # Without a look at the index: the caller may be the one who keeps its bucket waiting.
            ranges = {BucketId(bucket): (Offset(start[bucket]), Offset(last)) for bucket, last in end.items()}
        definition = past.current()
        check_names(definition, SchemaId(schema_id))
        layout = layout_of(definition)
        wanted = layout.encode_keys(keys).to_arrow()
        found = [pa.array([], pa.binary())]
        for bucket, (first, last) in ranges.items():
            batches = past.handles[bucket].log.batches(first, last)
            for rows in changes_between(batches, definition, bucket, first, last, layout.key_names):
                encoded = layout.encode_keys(rows).to_arrow()
                found.append(encoded.filter(pc.is_in(encoded, wanted)))
    changed = pc.is_in(wanted, pa.chunked_array(found).unique())
    return keys.filter(changed), {int(bucket): int(last) for bucket, (_, last) in ranges.items()}


def check_names(definition: TableDefinition, schema_id: SchemaId) -> None:
    """Refuse rows whose columns have other names now: a name may be that of another column.

    Raises:
        SchemaMismatch: Columns of their schema were renamed or dropped.
    """
    if names := definition.renamed_since(schema_id):
        raise SchemaMismatch(
            "Columns of the table were renamed or dropped since the patch was made; make the patch again.",
            table=definition.name,
            renamed={name: now for name, now in names.items() if now not in (name, None)},
            dropped=[name for name, now in names.items() if now is None],
        )
