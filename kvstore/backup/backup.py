"""Makes a backup of a store: a directory with its files as of one cut, while writing goes on.

* The directory is no store before the last step. Until then the file ``STORE`` has another name, by which the directory
  is refused as an unfinished backup, or continued by the next call.
* The backup has a leader of its own, in a later epoch, and no replicas: like a store that is restored from a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvstore.backup.bucket_copy import copy_bucket, size_of
from kvstore.backup.cut import Cut, cut_of
from kvstore.bucket.context import BucketPaths
from kvstore.disk.files import Files, read_file, refusals, refuse_network, resolved
from kvstore.disk.lock import directory_taken
from kvstore.errors import NotAStore, OffsetOutOfRange, StoreError
from kvstore.process.calls import uninterrupted
from kvstore.replica.follow.catalog_files import write_copied_catalog
from kvstore.store.runtime import StoreRuntime
from logformat import paths
from logformat.catalog import store_file
from logformat.ids import Txid

_TRIES = 5
Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Backup:
    """The result of a backup.

    Attributes:
        txid: The last edit of the catalog that it has.
        ends: By table name, for each bucket the offset before which the backup has everything.
        bytes: Size of the copied logs and indexes, also of what an earlier call had copied.
    """

    txid: Txid
    ends: dict[str, dict[int, int]]
    bytes: int


@uninterrupted
def back_up(runtime: StoreRuntime, path: Path, progress: Progress, files: Files | None = None) -> Backup:
    """Make a backup, or continue one; see :meth:`kvstore.Store.backup`.

    Args:
        files: The disk of the backup; for tests.
    """
    files, path = files or Files(), resolved(path)
    if path.is_relative_to(runtime.path):
        raise NotAStore("A backup is made outside of the store; choose another directory.", path=path)
    with refusals(path), _room(path, runtime, files):
        for last in range(_TRIES):
            before = runtime.catalog().tables.keys()
            try:
                with cut_of(runtime) as cut:
                    done = _copy(runtime, cut, path, files, progress)
                break
            except (FileNotFoundError, OffsetOutOfRange):  # a part of a log has expired since the cut
                if last == _TRIES - 1:
                    raise
            except StoreError:
                if last == _TRIES - 1 or before <= runtime.catalog().tables.keys():
                    raise  # else a table was dropped meanwhile, or replaced
        files.remove(path / paths.BACKUP_LEADER)
        files.rename(path / paths.UNFINISHED_BACKUP, path / paths.STORE_FILE)
        files.sync_directory(path)
    return done


@contextmanager
def _room(path: Path, runtime: StoreRuntime, files: Files) -> Iterator[None]:
    """Prepare the directory, and let no other backup be made there."""
    if not path.parent.is_dir():
        raise NotAStore("The parent directory of the backup does not exist; create that first.", path=path)
    if path.exists() and not path.is_dir():
        raise NotAStore("A backup is a directory, and this is a file; choose another path.", path=path)
    refuse_network(path.parent)
    files.make_directory(path)
    with directory_taken(path, "Another backup is being made here; wait for its end."):
        unfinished, identity = (
            path / paths.UNFINISHED_BACKUP,
            read_file(runtime.path / paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX),
        )
        if not unfinished.exists():
            if any(each.name != unfinished.name + paths.TEMPORARY for each in path.iterdir()):
                raise NotAStore("A backup is made in a directory that is new or empty; choose another.", path=path)
            files.publish(unfinished, identity)
        elif read_file(unfinished, bytes_max=store_file.STORE_BYTES_MAX) != identity:
            raise NotAStore("This is an unfinished backup of another store; choose another directory.", path=path)
        _keep_of(runtime.catalog().leader.encode(), path, files)
        yield


def _keep_of(leader: bytes, path: Path, files: Files) -> None:
    """Remove what an earlier call has copied, unless it has this leader: other copies of a store go on differently."""
    record = path / paths.BACKUP_LEADER
    if not record.exists() or read_file(record, bytes_max=store_file.STORE_BYTES_MAX) != leader:
        for each in (paths.TABLES, paths.JOURNAL.parts[0]):
            files.remove_tree(path / each)
        files.publish(record, leader)


def _copy(runtime: StoreRuntime, cut: Cut, path: Path, files: Files, progress: Progress) -> Backup:
    total, there = sum(map(size_of, cut.buckets.values())), 0

    def done(count: int) -> None:
        nonlocal there
        there += count
        progress(there, max(total, there))

    progress(0, total)
    files.make_directory(path / paths.TABLES)
    for name in files.names_in(path / paths.TABLES):
        if name not in map(str, cut.state.tables):
            files.remove_tree(path / paths.TABLES / name)  # dropped since an earlier call
    for stream, bucket in cut.buckets.items():
        target = BucketPaths.of(path, runtime.store_id, stream.table_id, stream.bucket)
        files.make_directory(target.directory.parent)
        copy_bucket(bucket, cut.state.tables[stream.table_id], target, files, runtime.clock, done)
    files.remove_tree(path / paths.JOURNAL.parts[0])
    ends = {stream: bucket.end.offset for stream, bucket in cut.buckets.items()}
    write_copied_catalog(path, runtime.store_id, cut.state, ends, files, runtime.clock)
    progress(there, there)
    by_name: dict[str, dict[int, int]] = {definition.name: {} for definition in cut.state.tables.values()}
    for stream, end in ends.items():
        by_name[cut.state.tables[stream.table_id].name][int(stream.bucket)] = end
    return Backup(cut.state.txid, by_name, there)
