"""Mends the catalog of a store: images that are damaged are made anew, and a journal goes on from a replica's."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from kvstore.checkpoint import recovery, worker
from kvstore.checkpoint.messages import Task
from kvstore.clock import Clock
from kvstore.errors import CorruptData, StoreLocked, UnsupportedVersion
from kvstore.files import Files
from kvstore.lock import ProcessLock
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.meta.salvage import salvage
from kvstore.meta.state import CatalogState
from kvstore.repair.quarantine import Quarantine
from kvstore.repair.source import Source
from logformat import paths
from logformat.ids import Epoch

_TASK_SECONDS = 600


class CatalogRepair:
    """Mends one catalog.

    Args:
        source: A replica, if there is one.

    Attributes:
        mended, gone, left: A sentence each: what is right by now, what is lost, what is wrong still.
    """

    def __init__(self, store: Path, store_id: UUID, files: Files, clock: Clock, source: Source | None) -> None:
        self._store = store
        self._store_id = store_id
        self._files = files
        self._clock = clock
        self._source = source
        self.repaired: list[str] = []
        self.gone: list[str] = []
        self.left: list[str] = []

    def repair(self, quarantine: Quarantine, *, accepts_loss: bool) -> CatalogState | None:
        """The catalog, once it can be loaded; None if it can't.

        Raises:
            WriterFenced: The replica is of another leader.
            StoreLocked: Another process makes an image, or uses a store whose catalog is damaged.
            UnsupportedVersion: A newer version wrote something.
            Unavailable: The replica can't be reached.
            StoreFull, LogFailed, OSError: The disk refuses. What was mended stays so.
        """
        try:
            state, damaged = self._loaded()
        except UnsupportedVersion:
            raise
        except CorruptData as error:
            if not self._recover(str(error), accepts_loss=accepts_loss):
                return None
            state, damaged = self._loaded()
        if self._source is not None:
            self._source.admit(state.leader_epoch, state.leader, state.replicas.values())
        if damaged:
            self._replace_images(state, damaged, quarantine)
        return state

    def _loaded(self) -> tuple[CatalogState, list[Path]]:
        """The catalog, and images that are damaged."""
        journal = Journal(
            self._store, self._files, self._clock, self._store_id, leadership=CatalogLeadership(), read_only=True
        )
        try:
            journal.verify()
            state = journal.state()
            for _ in journal.images.usable():
                pass
            return state, [Path(str(error.where["path"])) for error in journal.images.damaged]
        finally:
            journal.close()

    def _recover(self, wrong: str, *, accepts_loss: bool) -> bool:
        """Go on with what is left here and in the replica, under a new epoch."""
        if self._source is None:
            self.left.append(
                f"{wrong} Give a replica by --from, restore meta/ from a copy, or see what `kvstore meta recover` says."
            )
            return False
        local = salvage(self._store, self._store_id, self._files)
        leader = local.state.leader if local.state.leader_epoch == local.leader_epoch else None
        self._source.admit(local.leader_epoch, leader, local.state.replicas.values())
        elsewhere = self._source.catalog()
        found = recovery.recover(
            *(self._store, self._store_id, self._files, self._clock), write=False, elsewhere=elsewhere
        )
        if found.gone and not accepts_loss:
            gone = "; ".join(found.gone)
            self.left.append(
                f"{wrong} Of the catalog neither this store nor the replica has: {gone}. --accept-loss goes on without."
            )
            return False
        found = recovery.recover(
            *(self._store, self._store_id, self._files, self._clock), write=True, elsewhere=elsewhere
        )
        self.repaired.append(
            f"the catalog goes on from edit {found.txid}, in epoch {found.leader_epoch}, from what was left here and in"
            f" the replica; what it was is in {found.quarantine}: {wrong}"
        )
        self.gone += [f"of the catalog: {each}" for each in found.gone]
        return True

    def _replace_images(self, state: CatalogState, damaged: list[Path], quarantine: Quarantine) -> None:
        images = self._store / paths.IMAGES
        lock = ProcessLock(images / paths.LOCK_FILE, self._files)
        if not lock.try_acquire():
            raise StoreLocked("Another process makes an image of the catalog; wait until it is done.", path=images)
        try:
            for path in damaged:
                quarantine.move(path)
        finally:
            lock.release()
        task = Task(
            epoch=Epoch(worker.highest_epoch(images) + 1),
            store=str(self._store),
            store_id=self._store_id,
            txid=state.txid,
            seconds=_TASK_SECONDS,
        )
        done = worker.run(task, self._files, self._clock)
        for path in damaged:
            self.repaired.append(f"{path.name} was damaged, and is put aside; the newest image is of edit {done.txid}")
