"""Creates a copy of a store from a replica; continues where an earlier process stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.clock import Clock
from kvstore.disk.files import Files, read_file, refusals
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData, NotAStore, ReplicaBehind
from kvstore.meta.table_files import TableFiles
from kvstore.options import StoreOptions
from kvstore.process.calls import uninterrupted
from kvstore.replica.client import Client
from kvstore.replica.follow.catalog_files import write_catalog
from kvstore.replica.follow.new_tables import NewTables
from kvstore.replica.follow.round import CopyProgress, Planner, Round
from kvstore.replica.follow.spool import Spool
from kvstore.replica.read.restore import make_room
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog import following_file, store_file
from logformat.catalog.following_file import FOLLOWING_BYTES_MAX, FollowingFile
from logformat.catalog.replicas import Stream
from logformat.ids import Epoch


@uninterrupted
def create(
    path: Path,
    following: FollowingFile,
    client: Client,
    files: Files,
    clock: Clock,
    progress: Callable[[int], None] = lambda _: None,
) -> Round:
    """Create a copy in a directory that is new or empty, or has what an earlier attempt left: that is continued.

    The copy has the name of the first attempt. Its ``STORE`` file is written last. After an error the directory is not
    a store, and has what is needed to continue.

    Raises:
        NotAStore: The directory has something else, or there is no replica of this store.
        StoreLocked: Another process creates the copy.
        ReplicaBehind, MissingVersion, CorruptData: The replica does not have what a copy needs.
        Unavailable: The replica can't be reached.
        StoreFull, LogFailed: The disk is full or failed.
    """
    spool = Spool(client, path, following.store_id, files)
    source = Source(spool, progress)
    check_store(source, following, path)
    with refusals(path), _unfinished(path, following, spool, source.manifest.leader_epoch, files):
        tables = NewTables(path, source, StoreOptions(), files, clock, spool.discard)
        try:
            planned = _planned(source, tables)
            for definition in planned.state.tables.values():
                tables.write(definition, planned)
        except CorruptData:
            spool.end()  # an object that is repaired keeps its name
            raise
        for left in (paths.JOURNAL, paths.IMAGES):
            files.remove_tree(path / left)
        TableFiles(path, following.store_id, files).write_all(planned.state)
        write_catalog(path, following.store_id, planned.state, planned.edits[-1], files, clock)
        files.publish(path / paths.STORE_FILE, store_file.encode(source.store))
        spool.end()
    return planned


def check_store(source: Source, following: FollowingFile, path: Path) -> None:
    """Check that a replica belongs to the store that a copy follows.

    Raises:
        NotAStore: It belongs to another store.
    """
    if source.store.store_id != following.store_id:
        raise NotAStore("The replica now belongs to another store.", path=path, of=source.store.store_id)


def _planned(source: Source, tables: NewTables) -> Round:
    """What the copy has in the end. What it has already is part of it, because a replica only gets more."""
    _, base, edits = source.catalog()
    tail, state = list(edits), base
    for edit in tail:
        state = state.after(edit)
    progress_of: dict[Stream, CopyProgress | None] = {}

    def progress(stream: Stream) -> CopyProgress | None:
        if stream not in progress_of:
            progress_of[stream] = tables.progress(stream, state.tables[stream.table_id])
        return progress_of[stream]

    planned = Planner(source, progress).plan(base, tail)
    if not planned.edits:
        raise ReplicaBehind("The replica has no edit after its image of the catalog yet; try again.")
    return planned


@contextmanager
def _unfinished(path: Path, following: FollowingFile, spool: Spool, epoch: Epoch, files: Files) -> Iterator[None]:
    """The directory of an unfinished copy, locked; begins it, unless an earlier process has, in the same epoch."""
    meta, file = path / paths.FOLLOWING.parent, path / paths.FOLLOWING
    if not _is_unfinished(path):
        make_room(path, files)
    files.make_directory(meta)
    lock = ProcessLock(path / paths.SHIPPING)
    lock.acquire()
    try:
        before = _following(file)
        if before is None or (before.store_id, before.url) != (following.store_id, following.url):
            _clear(path, files)
            files.publish(file, following_file.encode(following))
        elif not spool.has_begun(epoch):
            _clear(path, files)  # a new leader may have another history
        spool.begin(epoch)
        yield
    finally:
        lock.release()


def _is_unfinished(path: Path) -> bool:
    """Whether the directory has a copy whose creation has begun and did not finish."""
    meta = path / paths.FOLLOWING.parent
    if (path / paths.STORE_FILE).exists() or not meta.is_dir():
        return False
    first = {paths.FOLLOWING.name + paths.TEMPORARY, paths.SHIPPING.name}
    has_only_begun = [each.name for each in path.iterdir()] == [meta.name] and {
        each.name for each in meta.iterdir()
    } <= first
    return has_only_begun or (path / paths.FOLLOWING).exists()


def _following(file: Path) -> FollowingFile | None:
    try:
        return following_file.decode(read_file(file, bytes_max=FOLLOWING_BYTES_MAX))
    except (FileNotFoundError, CorruptData):
        return None


def _clear(path: Path, files: Files) -> None:
    """Remove what an unfinished copy has; the files that show that it is one stay."""
    meta = path / paths.FOLLOWING.parent
    kept = (meta, path / paths.FOLLOWING, path / paths.SHIPPING)
    for other in [*path.iterdir(), *meta.iterdir()]:
        if other not in kept:
            files.remove_tree(other) if other.is_dir() else files.remove(other)
