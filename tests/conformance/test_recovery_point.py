"""Fluss's checkpoint file of recovery points, a line for each bucket.

Here each bucket keeps its own, in the state record of its index: table, bucket, and the offset up to which the log was
durable. It is written in the transaction that brings the rows up to there, so the two can't diverge; version and
checksum of the record correspond to the file's first lines. A partition will have its own table id.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.bucket.recovery import synced_end
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.index.index import Index
from logformat.ids import BucketId, Offset, TableId
from logformat.log.index_state import IndexState
from logformat.paths import bucket_directory
from tests.conformance.vectors import VECTORS, running

KINDS = ("text_file",)


@pytest.mark.parametrize("name", running(*KINDS))
def test_every_entry_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    entries = VECTORS[name]["entries"]
    tables: dict[tuple[str, str], TableId] = {}
    for table, partition, bucket, offset in entries:
        table_id = tables.setdefault((table, partition), TableId(len(tables)))
        for synced in (offset - 1, offset):  # the newer one replaces the older one
            with_index(tmp_path, table_id, bucket, IndexState(table_id, BucketId(bucket), synced_offset=Offset(synced)))
    for table, partition, bucket, offset in entries:
        state = with_index(tmp_path, tables[table, partition], bucket)
        assert (state.table_id, state.bucket_id) == (tables[table, partition], bucket)
        assert synced_end(state).offset == offset


def with_index(store: Path, table: TableId, bucket: int, state: IndexState | None = None) -> IndexState:
    """Open the index of a bucket, commit a state if one is given, and return the current one."""
    directory = bucket_directory(store, table, BucketId(bucket))
    directory.mkdir(parents=True, exist_ok=True)
    index = Index(open_environment(directory, Files(), map_bytes=1 << 20, create=True))
    if state is not None:
        index.commit(state)
    with index.view() as view:
        found = view.state()
    index.close()
    return found
