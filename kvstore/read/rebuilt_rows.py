"""Rows of one bucket, built from a snapshot and batches of another source, in a temporary index.

* Its files have no names once it is open: however the process ends, nothing is left.
* As in recovery, rows are not merged again. No writers are kept, since nothing writes to it.
* Data from another source is validated to the last offset and string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

import lmdb
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.bucket.merge.replay import FinalChanges, final_rows, store
from kvstore.bucket.snapshots import snapshot
from kvstore.bucket.write_path import REPLAY_BYTES_MAX
from kvstore.disk.address_space import shortage
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files, refusals
from kvstore.errors import CorruptBatch, StoreFull
from kvstore.index.index import Index, View
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.read.pruning import ranges_where
from kvstore.read.scan import KeyRange, rows_now
from kvstore.request.row_layout import layout_of
from logformat.ids import BucketId, Offset
from logformat.log.batch import decode_batch, decode_header
from logformat.log.index_state import IndexState
from logformat.log.snapshot_manifest import Manifest

WAITING_ROWS, WAITING_BYTES = 1 << 16, 64 << 20
"""Limits of the batches that are combined."""


class TemporaryRows:
    """Rows of a bucket; a context manager.

    Args:
        definition: The table, which has a key.
        parent: Directory with room for the rows.

    Attributes:
        last_timestamp: Timestamp of the last commit (ms); 0 if there is none.

    Raises:
        StoreFull, LogFailed: The disk is full or failed.
    """

    def __init__(self, definition: TableDefinition, bucket: BucketId, parent: Path) -> None:
        self._definition = definition
        self._bucket = bucket
        self._parent = parent
        self._layout = layout_of(definition)
        self.last_timestamp = 0
        self._schema_id = definition.schema_id
        self._waiting: list[FinalChanges] = []
        self._waiting_rows = self._waiting_bytes = 0
        with refusals(parent):
            directory = Path(mkdtemp(prefix="kvstore-", dir=parent))
            try:
                options = StoreOptions()
                self._index = Index(
                    open_environment(
                        directory / "index", Files(), map_bytes=options.map_bytes, create=True, has_databases=False
                    )
                )
            finally:
                rmtree(directory)
        with self._refusals():
            self._commit(Offset(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the index, and with it all views."""
        self._index.close()

    def finish(self, end: Offset) -> None:
        """Show everything that was applied to new views, as the rows as of an offset.

        Raises:
            StoreFull: The disk is full.
        """
        self._put_waiting()
        with self._refusals():
            self._commit(end)

    def view(self, *, scans: bool = False) -> AbstractContextManager[View]:
        """A view as of the last :meth:`finish`.

        Args:
            scans: Whether many rows are read.
        """
        return self._index.scan_view() if scans else self._index.view()

    def value(self, key: bytes) -> bytes | None:
        """Value of a key as of the last :meth:`finish`; None if it is not there."""
        return self._index.environment.get(key)

    def bytes(self) -> int:
        """Approximate size in bytes."""
        with self._index.view() as view:
            return view.leaf_bytes()

    def load(self, manifest: Manifest, data: memoryview) -> None:
        """Load the rows of a snapshot; called first.

        Args:
            data: The snapshot's file of rows, with a verified checksum.

        Raises:
            CorruptData: The rows are damaged.
            StoreFull: The disk is full.
        """
        with self._refusals():
            for rows in snapshot.verified_rows(manifest, data, self._definition):
                self._index.put(rows.keys.to_list(), rows.values.to_list())
                self._commit_if_much()
        self.last_timestamp = manifest.last_timestamp

    def apply(self, data: memoryview, end: int) -> None:
        """Apply a batch.

        Args:
            data: The whole batch.
            end: Only its changes before this offset are applied.

        Raises:
            CorruptBatch: The batch is damaged.
            InvalidRequest: The batch is not of this table.
            StoreFull: The disk is full.
        """
        batch = decode_batch(data, self._definition.schema_of(decode_header(data).schema_id))
        count = min(batch.record_count, end - batch.base_offset)
        changes = FinalChanges.of(batch, count)
        if any(changes.rows.column(name).null_count for name in self._layout.key_names):
            raise CorruptBatch("A batch has a row without a key.", base_offset=batch.base_offset)
        if changes.rows.num_rows:
            if self._waiting and self._schema_id != batch.schema_id:
                self._put_waiting()
            self._schema_id = batch.schema_id
            self._waiting.append(changes)
            self._waiting_rows += changes.rows.num_rows
            self._waiting_bytes += changes.rows.nbytes
            if self._waiting_rows >= WAITING_ROWS or self._waiting_bytes >= WAITING_BYTES:
                self._put_waiting()
        self.last_timestamp = batch.commit_timestamp

    def rows(self, columns: Sequence[str], filter: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """All rows in key order.

        Args:
            filter: Rows for which it can't be true may be missing.
        """
        self.finish(Offset(0))
        with self._index.scan_view() as view:
            ranges = [KeyRange()] if filter is None else ranges_where(view, self._definition, filter)
            for keys in ranges:
                yield from rows_now(view, self._definition, columns, keys)

    def _put_waiting(self) -> None:
        """Store the last waiting change of each key; a pass over the index costs about the same for any size."""
        if not self._waiting:
            return
        waiting = self._waiting
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        with self._refusals():
            store(self._index, final_rows(self._definition, self._schema_id, waiting).run)
            self._commit_if_much()

    def _commit_if_much(self) -> None:
        if self._index.dirty_bytes() >= REPLAY_BYTES_MAX:
            self._commit(Offset(0))

    def _commit(self, end: Offset) -> None:
        state = IndexState(self._definition.id, self._bucket, applied_offset=end, last_timestamp=self.last_timestamp)
        self._index.commit(state)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (lmdb.MemoryError, lmdb.MapFullError) as error:
            raise shortage(self._parent, error) from error
        except lmdb.Error as error:
            raise StoreFull(
                "The disk has no room for the rows of a bucket; free some and try again.",
                path=self._parent,
                reason=str(error),
            ) from error
