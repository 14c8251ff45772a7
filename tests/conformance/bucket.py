"""A bucket of a log table without a store, so that a vector can control when it rolls, commits and opens.

Fluss keeps the state of writers in snapshot files. Here two things correspond to one: the file ``.writers`` at the
start of a segment, and the index, which has the writers as of the offset of its last commit.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from kvstore.bucket.context import BucketPaths
from kvstore.bucket.recovery import open_merged
from kvstore.bucket.snapshots import snapshot
from kvstore.bucket.write_path import WritePath
from kvstore.disk.files import Files
from kvstore.log import recovery as log_recovery, retention
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.request.request import Request
from kvstore.request.results import AppendResult
from logformat import paths
from logformat.catalog.edits import TableOptions
from logformat.ids import NO_SEQUENCE, NO_WRITER, Epoch, Offset, SchemaId, Sequence, WriterId
from logformat.rows.changes import Changes
from tests.support.clocks import SetClock
from tests.support.logs import IDENTITY, ROWS

SCHEMA = SchemaId(0)
DEFINITION = TableDefinition(IDENTITY.table_id, "t", {SCHEMA: ROWS.schema}, None, 1, TableOptions(compression=None))
OPTIONS = StoreOptions(map_bytes=1 << 20)


class Bucket:
    """Opened only by :meth:`reopen`."""

    path: WritePath

    def __init__(self, directory: Path) -> None:
        self.paths = BucketPaths(directory, IDENTITY)
        self.clock = SetClock(0)
        log_recovery.create(self.paths.log, IDENTITY, Files())
        self.reopen()

    def reopen(self) -> None:
        """Recover the bucket and open it."""
        self.path = open_merged(self.paths, DEFINITION, OPTIONS, Files(), self.clock)

    def append(self, writer: int = NO_WRITER, sequence: int = NO_SEQUENCE) -> AppendResult:
        """Append a batch of one record, if it is the writer's next."""
        changes = Changes(ROWS.slice(0, 1), pa.array(np.zeros(1, bool)))
        request = Request(changes, WriterId(writer), Sequence(sequence), Epoch(0), None)
        applied = self.path.apply(request)
        if applied.batch is not None:
            self.path.log.append([applied.batch])
            self.path.log.sync()
            self.path.publish()
        return applied.result

    def snapshot(self) -> None:
        """Do what corresponds to a snapshot of writers."""
        self.path.roll()
        self.path.commit()

    def close(self) -> None:
        """Commit and close, as a store does."""
        self.path.commit()
        self.path.close()

    def truncate(self, offset: int) -> None:
        """Truncate the log and open the bucket again.

        Recovery never truncates durable data, and so far no other component does: the test does it by hand, and removes
        the index, which is derived and would be ahead of the log.
        """
        self.close()
        log = LogFiles(self.paths.log, IDENTITY)
        found = next(log.batches(Offset(offset), self.path.log.end.offset), None)
        for base in log.bases():
            if base and base >= offset:
                paths.segment_file(self.paths.log, base).unlink()
        if found is not None and found.path.exists():
            with found.path.open("r+b") as file:
                file.truncate(found.position)
        shutil.rmtree(self.paths.index)
        self.reopen()

    def expire(self, offset: int) -> None:
        """Remove the segments before an offset, as retention does: below a snapshot of the index."""
        self.path.commit()
        taken = snapshot.take(
            self.paths.directory,
            IDENTITY,
            self.path.memtable.index.view,
            lambda: DEFINITION,
            Files(),
            now_ms=self.clock.now,
        )
        needed = retention.needed_from(taken.log_end, self.path.log.end)
        expired = Offset(min(needed, offset))
        retention.remove_before(self.paths.log, LogFiles(self.paths.log, IDENTITY), expired, Files())

    def lose_index(self) -> None:
        """Open the bucket without its index."""
        self.close()
        shutil.rmtree(self.paths.index)
        self.reopen()

    def files(self) -> list[int]:
        """Offsets of the ``.writers`` files."""
        bases = (paths.writers_base(path.name) for path in self.paths.log.iterdir())
        return sorted(base for base in bases if base is not None)

    def snapshots(self) -> list[int]:
        """Offsets at which the writers are stored.

        The state of writers at the start of the log is not a snapshot: no batch of the log shows it.
        """
        start = LogFiles(self.paths.log, IDENTITY).start()
        return sorted(offset for offset in {*self.files(), self.map_end()} if offset > start)

    def map_end(self) -> int:
        """Offset up to which the index has the writers."""
        with self.path.memtable.index.view() as view:
            return view.state().applied_offset

    def windows(self) -> dict[int, list[int]]:
        """Remembered sequences of each writer, oldest first, after a commit."""
        self.path.commit()
        with self.path.memtable.view() as view:
            return {writer: [batch.sequence for batch in entry.batches] for writer, entry in view.writers().items()}

    def active_writers(self) -> dict[str, int]:
        """Last sequence of each writer, as the vectors write it."""
        return {str(writer): sequences[-1] for writer, sequences in self.windows().items()}
