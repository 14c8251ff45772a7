"""Recovery of the catalog from its readable parts in this directory, under a new leader (docs/format.md).

* Nothing is removed: what the recovered catalog lacks is moved to quarantine.
* A process that has the old journal open can't add edits to it any more.
* A recovery may end at any step and is then repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID, uuid4

from kvstore.checkpoint import worker
from kvstore.clock import Clock
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files, refusals
from kvstore.disk.lock import EditLock, ProcessLock
from kvstore.errors import CorruptData, NotAStore, StoreLocked
from kvstore.meta import image
from kvstore.meta.journal import MAP_BYTES, create_journal
from kvstore.meta.salvage import Elsewhere, Salvaged, salvage
from kvstore.meta.state import CatalogState
from kvstore.meta.table_files import has_changes
from logformat import paths
from logformat.catalog.edits import BeginEpoch, DropTable, Edit, EndCommit, Payload
from logformat.ids import BucketId, Epoch, TableId, Txid
from logformat.replica import manifest as replica_told


@dataclass(frozen=True)
class Recovery:
    """Result of a recovery.

    Attributes:
        image: Txid of the image that it begins with; None if no image is valid.
        txid: The edit with which the catalog continues.
        leader_epoch: The new leader epoch; earlier ones are fenced.
        tables: Names of the recovered tables.
        damaged: One sentence for each damage.
        gone: One sentence for each loss.
        restored: Names of tables with lost edits, whose definitions come from the files beside their data.
        quarantined: Paths in the store that the recovered catalog lacks; they are moved to ``quarantine``.
        quarantine: The directory for these, and for the old journal.
        written: Whether the recovery was carried out; False if nothing was written.
    """

    image: Txid | None
    txid: Txid
    leader_epoch: Epoch
    tables: list[str]
    damaged: list[str]
    gone: list[str]
    restored: list[str]
    quarantined: list[Path]
    quarantine: Path
    written: bool


@dataclass
class _Plan:
    edit: Edit
    state: CatalogState
    gone: list[str]
    quarantined: list[Path] = field(default_factory=list)


def recover(
    store: Path, store_id: UUID, files: Files, clock: Clock, *, write: bool, elsewhere: Elsewhere | None = None
) -> Recovery:
    """Find the readable part of a catalog; with ``write``, continue the catalog from there.

    Args:
        elsewhere: The same catalog in a replica.

    Raises:
        NotAStore: The directory is a replica.
        StoreLocked: Another process writes the store or an image.
        UnsupportedVersion: A newer version wrote an image or an edit. Nothing was written.
        StoreFull, LogFailed: The disk is full or failed; repair it and recover again.
    """
    if (store / replica_told.NAME).exists():
        raise NotAStore("This is a replica; use `kvstore replica restore`.", path=store)
    with refusals(store), _exclusive(store, files) if write else ExitStack():
        before = _last_commit(store, files)
        left = salvage(store, store_id, files, elsewhere)
        plan = _plan(store, left, clock, () if elsewhere is None else elsewhere.also)
        quarantine = paths.lost_directory(store, plan.edit.txid)
        if write:
            _carry_out(store, store_id, plan, quarantine, files, clock, before)
    return Recovery(
        image=left.image,
        txid=plan.edit.txid,
        leader_epoch=plan.edit.epoch,
        tables=sorted(table.name for table in plan.state.tables.values()),
        damaged=left.damaged,
        gone=plan.gone,
        restored=[name for name in left.restored if plan.state.table(name) is not None],
        quarantined=plan.quarantined,
        quarantine=quarantine,
        written=write,
    )


def _plan(store: Path, left: Salvaged, clock: Clock, also: Sequence[Payload]) -> _Plan:
    state, gone = left.state, list(left.gone)
    for table in list(state.tables.values()):
        if not (store / paths.TABLES / str(table.id)).is_dir():
            gone.append(f"table {table.name}: its directory is missing")
            state = _after(state, DropTable(table_id=table.id))
    for id, writers in state.writers.items():
        for commit in writers.commits:
            if commit.staged is None and not paths.staged_file(store, commit.commit_id).exists():
                left.damaged.append(
                    f"staged rows of commit {commit.commit_id} are missing: no further bucket gets them"
                )
                state = _after(state, EndCommit(table_id=id, commit_id=commit.commit_id))
    for payload in also:
        state = _after(state, payload)
    edit = Edit(
        txid=Txid(left.last + 1),
        epoch=Epoch(left.leader_epoch + 1),
        time_ms=clock.now_ms(),
        payload=BeginEpoch(leader=uuid4().hex),
    )
    after = replace(state, txid=left.last).after(edit)
    return _Plan(edit, after, gone, list(_unknown(store, state)) if left.gone else [])


def _after(state: CatalogState, payload: Payload) -> CatalogState:
    return state.after(Edit(txid=Txid(state.txid + 1), epoch=state.leader_epoch, time_ms=0, payload=payload))


def _unknown(store: Path, state: CatalogState) -> Iterator[Path]:
    """Paths that the catalog lacks but may have had in a lost edit; the store would remove them."""
    for directory in sorted((store / paths.TABLES).glob("*")):
        if directory.name.isdecimal() and int(directory.name) not in state.tables and has_changes(directory):
            yield directory.relative_to(store)
    open_ids = {commit.commit_id for writers in state.writers.values() for commit in writers.commits}
    for file in sorted((store / paths.STAGING).glob("*")):
        table = TableId(int(prefix)) if (prefix := file.name.partition("-")[0]).isdecimal() else None
        commit = None if table is None else paths.staged_commit(file.name, table)
        if commit is not None and commit not in open_ids:
            yield file.relative_to(store)


def _carry_out(
    store: Path, store_id: UUID, plan: _Plan, quarantine: Path, files: Files, clock: Clock, before: int | None
) -> None:
    # First: once the image is there, a repeated recovery no longer finds these paths.
    files.make_directory(store / paths.LOST)
    files.make_directory(quarantine)
    for path in plan.quarantined:
        _move_to_quarantine(path, store, quarantine, files)
    images = store / paths.IMAGES
    unfinished = images / paths.UNFINISHED_IMAGE
    with suppress(FileNotFoundError):
        files.remove(unfinished)
    epoch = Epoch(worker.highest_epoch(images) + 1)
    image.save(unfinished, image.image_of(plan.state, store_id, epoch=epoch, now_ms=clock.now_ms()), files)
    files.rename(unfinished, paths.image_file(images, plan.edit.txid))
    files.sync_directory(images)
    made = store / paths.UNFINISHED_JOURNAL
    files.remove_tree(made)
    create_journal(made, files, plan.edit)
    journal = store / paths.JOURNAL
    with _block_edits(store, files, clock):
        if _last_commit(store, files) != before:
            raise StoreLocked("Another process uses the store; end it first.", path=journal)
        if journal.exists():
            files.rename(journal, quarantine / journal.name)
            files.sync_directory(quarantine)
        files.rename(made, journal)
        files.sync_directory(journal.parent)
    if (store / paths.FOLLOWING).exists():  # a recovered copy no longer follows its leader
        files.remove(store / paths.FOLLOWING)
        files.sync_directory((store / paths.FOLLOWING).parent)
    for txid in image.txids(images):
        if txid < plan.edit.txid:  # the new journal lacks the edits after it
            _move_to_quarantine(paths.image_file(paths.IMAGES, txid), store, quarantine, files)


def _move_to_quarantine(path: Path, store: Path, quarantine: Path, files: Files) -> None:
    """Move a file or directory of the store to quarantine, under the same relative path."""
    for directory in reversed(path.parents[:-1]):
        files.make_directory(quarantine / directory)
    files.rename(store / path, quarantine / path)
    files.sync_directory((quarantine / path).parent)
    files.sync_directory((store / path).parent)


@contextmanager
def _exclusive(store: Path, files: Files) -> Iterator[None]:
    """Hold the lock of the images and the locks of all buckets."""
    files.make_directory(store / paths.IMAGES.parent)
    files.make_directory(store / paths.IMAGES)
    directories = [store / paths.IMAGES]
    for directory in (store / paths.TABLES).glob("*/*"):
        if directory.is_dir() and directory.parent.name.isdecimal() and directory.name.isdecimal():
            table, bucket = TableId(int(directory.parent.name)), BucketId(int(directory.name))
            directories.append(paths.bucket_directory(store, table, bucket))
    with ExitStack() as held:
        for directory in directories:
            lock = ProcessLock(directory / paths.LOCK_FILE)
            held.enter_context(lock.taken("Another process uses the store; end it first."))
        yield


def _last_commit(store: Path, files: Files) -> int | None:
    """Number of the journal's last transaction; None if the file is too damaged for LMDB."""
    try:
        environment = open_environment(store / paths.JOURNAL, files, map_bytes=MAP_BYTES, read_only=True)
    except (FileNotFoundError, CorruptData):
        return None
    with closing(environment):
        return environment.last_committed()


@contextmanager
def _block_edits(store: Path, files: Files, clock: Clock) -> Iterator[None]:
    """Make processes wait that add edits to the old journal, unless it is too damaged for edits."""
    try:
        environment = open_environment(store / paths.JOURNAL, files, map_bytes=MAP_BYTES)
    except (FileNotFoundError, CorruptData):
        yield
        return
    with closing(environment), EditLock(store / paths.EDIT_LOCK, files, clock).held():
        transaction = environment.begin_write()
        try:
            yield
        finally:
            transaction.abort()
