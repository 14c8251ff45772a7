"""A copy of a store that follows a replica: its files, as its follower has them open.

* Edits are durable before the batches that need them, so the catalog may be ahead of the buckets.
* While ``meta/TAKING`` is not there, each commit over several buckets is in all of them or in none.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec

from kvstore.bucket.commit_lock import CommitLock
from kvstore.bucket.context import BucketContext, BucketPaths
from kvstore.checkpoint.controller import Controller
from kvstore.clock import Clock
from kvstore.commit.staging import Staging
from kvstore.disk.files import Files, read_file, refusals
from kvstore.disk.held_directory import HeldDirectory
from kvstore.disk.lock import ProcessLock
from kvstore.errors import NotAStore
from kvstore.memtable.budget import Budget
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.meta.state import CatalogState
from kvstore.meta.table_catalog import TableCatalog
from kvstore.meta.table_files import AboutDefinition, TableFiles
from kvstore.options import StoreOptions
from kvstore.process.meter import TableMeter
from kvstore.replica.follow.copied_bucket import CopiedBucket
from kvstore.replica.follow.new_tables import NewTables
from kvstore.replica.follow.round import CopyProgress, Round
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog import following_file, store_file
from logformat.catalog.edits import DropTable
from logformat.catalog.following_file import FollowingFile
from logformat.catalog.replicas import Stream
from logformat.ids import TableId

_UNSYNCED = ("WRITE_NO_SYNC", "NO_SYNC")


class Copy:
    """An existing copy.

    Raises:
        NotAStore: There is none, or it follows no replica.
        StoreLocked: Another process follows with it.
        CorruptImage: Its catalog is damaged.
    """

    def __init__(self, path: Path, options: StoreOptions, files: Files, clock: Clock) -> None:
        self.path = path
        self.following = following_of(path)
        self._options = options
        self._budget = Budget(options.memtable_bytes)
        self._files = files
        self._clock = clock
        self._buckets: dict[Stream, CopiedBucket] = {}
        self._files_closed = False
        try:
            self._store = store_file.decode(read_file(path / paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX))
        except FileNotFoundError as error:
            raise NotAStore("The creation of this copy did not finish; follow with it again.", path=path) from error
        with refusals(path):
            self._held = files.held = HeldDirectory(path, clock)
        self._lock = ProcessLock(path / paths.SHIPPING, files)
        try:
            self._lock.acquire()
        except BaseException:
            self._close_directory()
            raise
        try:
            self.journal = Journal(
                *(path, files, clock, self._store.store_id),
                leadership=CatalogLeadership(),
                edits_per_segment=options.edits_per_journal,
                sync=options.journal_sync,
            )
            self.checkpoints = Controller(
                *(path, self._store.store_id, self.journal, files, clock), edits_per_image=options.edits_per_journal
            )
            self.journal.listen(self.checkpoints)
            try:
                self._remove_orphans()
            except BaseException:
                self.journal.close()
                raise
        except BaseException:
            self._lock.release()
            self._close_directory()
            raise

    @property
    def state(self) -> CatalogState:
        """The catalog."""
        return self.journal.state()

    def progress(self, stream: Stream) -> CopyProgress | None:
        """How far the copy is in a bucket; None if it has nothing of it."""
        if stream.table_id not in self.state.tables:
            return None
        bucket = self.bucket(stream)
        return CopyProgress(bucket.end, bucket.last_sequences)

    def bucket(self, stream: Stream) -> CopiedBucket:
        """A bucket of an existing table."""
        if stream not in self._buckets:
            self._buckets[stream] = self._opened(stream)
        return self._buckets[stream]

    def take(self, planned: Round, source: Source) -> int:
        """Take a round; returns the number of changes in it.

        Raises:
            StoreFull, LogFailed: The disk is full or failed; close the copy, and open it again.
            CorruptData: An object is damaged.
            Unavailable: The replica can't be reached.
        """
        before = self.state
        taking = self.path / paths.TAKING
        with refusals(self.path):
            if planned.has_commits:
                # Durable before any of it is there. What a process left that died is removed by the next round.
                self._files.publish(taking, b"")
                self._files.sync_directory(taking.parent)
            for definition in planned.state.tables.values():
                if definition.id not in before.tables:
                    self._files.remove_tree(self.path / paths.TABLES / str(definition.id))
                    tables = NewTables(self.path, source, self._options, self._files, self._clock)
                    tables.write(definition, planned)
        self._prepare_table_files(before, planned)
        changes = 0
        extended = {
            stream: end
            for stream, end in planned.ends.items()
            if stream.table_id in before.tables and end > self.bucket(stream).end
        }
        # Batches need the catalog that they were written under, even after a power cut.
        durable = bool(extended) or self._options.journal_sync not in _UNSYNCED
        self.journal.replay(planned.edits, durable=durable)
        for stream in [stream for stream in self._buckets if stream.table_id not in planned.state.tables]:
            self._buckets.pop(stream).close()
        for table in before.tables.keys() - planned.state.tables.keys():
            with refusals(self.path):
                self._files.remove_tree(self.path / paths.TABLES / str(table))
        for stream, end in extended.items():
            bucket = self.bucket(stream)
            changes += bucket.append(source.batches(source.path_from(stream, bucket.end, end), end))
        with refusals(self.path):
            if self._files.exists(taking):
                self._files.remove(taking)
        new = planned.state.tables.keys() - before.tables.keys()
        return changes + sum(end for stream, end in planned.ends.items() if stream.table_id in new)

    def _prepare_table_files(self, before: CatalogState, planned: Round) -> None:
        files = TableFiles(self.path, self._store.store_id, self._files)
        payloads = [edit.payload for edit in planned.edits]
        for payload in payloads:
            if isinstance(payload, DropTable):
                files.before(before, payload)
        if any(isinstance(payload, AboutDefinition) for payload in payloads):
            with refusals(self.path):
                files.write_all(planned.state)

    def mark(self, leader: str) -> None:
        """Record durably that the copy is being promoted, and the text that identifies it as leader.

        Raises:
            StoreFull, LogFailed: The disk is full or failed.
        """
        self.following = msgspec.structs.replace(self.following, leader=leader)
        with refusals(self.path):
            self._files.publish(self.path / paths.FOLLOWING, following_file.encode(self.following))

    def end_following(self) -> None:
        """Make the copy an ordinary store.

        Raises:
            StoreFull, LogFailed: The disk is full or failed.
        """
        with refusals(self.path):
            self._files.remove_tree(self.path / paths.DOWNLOADS)  # a round that failed may have left some
            if self._files.exists(self.path / paths.TAKING):
                self._files.remove(self.path / paths.TAKING)
            self._files.remove(self.path / paths.FOLLOWING)
            self._files.sync_directory((self.path / paths.FOLLOWING).parent)

    def close_files(self) -> None:
        """Close the files, but keep the lock: no other process can follow with the copy."""
        if self._files_closed:
            return
        self._files_closed = True
        with ExitStack() as stack:
            stack.callback(self._close_directory)
            stack.callback(self.journal.close)
            stack.callback(self.checkpoints.close)
            for bucket in self._buckets.values():
                stack.callback(bucket.close)
            self._buckets.clear()

    def _close_directory(self) -> None:
        self._held.close()
        self._files.held = None

    def close(self) -> None:
        """Close the files and release the lock."""
        try:
            self.close_files()
        finally:
            self._lock.release()

    def _opened(self, stream: Stream) -> CopiedBucket:
        table, files = stream.table_id, self._files
        context = BucketContext(
            BucketPaths.of(self.path, self._store.store_id, table, stream.bucket),
            TableCatalog(self.journal, table, self.state.tables[table].name, self._clock),
            CommitLock(self.path, table, files, self._clock),
            Staging(self.path, table, files),
            *(files, self._clock, self._options, TableMeter(self._clock), self._budget),
        )
        with refusals(context.paths.directory):
            return CopiedBucket(context)

    def _remove_orphans(self) -> None:
        """Remove tables that were being dropped or created when a process died."""
        tables = self.state.tables
        with refusals(self.path):
            for left in self.path.glob(f"*{paths.TEMPORARY}"):
                self._files.remove_tree(left) if left.is_dir() else self._files.remove(left)
            for directory in (self.path / paths.TABLES).glob("*"):
                if directory.name.isdecimal() and TableId(int(directory.name)) not in tables:
                    self._files.remove_tree(directory)


def following_of(path: Path) -> FollowingFile:
    """The file that says which replica a copy follows.

    Raises:
        NotAStore: The directory has none.
        CorruptData: The file is damaged.
    """
    try:
        return following_file.decode(read_file(path / paths.FOLLOWING, bytes_max=following_file.FOLLOWING_BYTES_MAX))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotAStore(
            "This is not a copy that follows a replica; `kvstore replica follow` makes one.", path=path
        ) from error
