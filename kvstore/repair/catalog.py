"""Repairs the catalog of a store: replaces damaged images, and continues a damaged journal with a replica's edits."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import UUID

from kvstore.checkpoint import recovery, worker
from kvstore.checkpoint.messages import Task
from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData, UnsupportedVersion
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
    """Repairs one catalog.

    Args:
        source: A replica to take edits from, if there is one.

    Attributes:
        repaired: What was repaired, one sentence each.
        gone: Acknowledged edits that are lost, one sentence each.
        left: What is still wrong, and what to do about it.
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
        """Repair the catalog, and load it; None if it still can't be loaded.

        Args:
            accepts_loss: Whether to continue without acknowledged edits that are lost.

        Raises:
            WriterFenced: Another leader ships to the replica.
            StoreLocked: Another process writes an image, or uses a store whose catalog is damaged.
            UnsupportedVersion: A newer version wrote something.
            Unavailable: The replica can't be reached.
            StoreFull, LogFailed, OSError: The disk refuses. What was repaired before stays repaired.
        """
        try:
            state, damaged = self._load()
        except UnsupportedVersion:
            raise
        except CorruptData as error:
            if not self._recover(str(error), accepts_loss=accepts_loss):
                return None
            state, damaged = self._load()
        if self._source is not None:
            self._source.refuse_other_leader(state.leader_epoch, state.leader, state.replicas.values())
        if damaged:
            self._replace_images(state, damaged, quarantine)
        return state

    def _load(self) -> tuple[CatalogState, list[Path]]:
        """The catalog, and the paths of damaged images."""
        opened = Journal(
            self._store, self._files, self._clock, self._store_id, leadership=CatalogLeadership(), read_only=True
        )
        with closing(opened) as journal:
            journal.verify()
            state = journal.state()
            for _ in journal.images.usable():
                pass
            return state, [Path(str(error.where["path"])) for error in journal.images.damaged]

    def _recover(self, problem: str, *, accepts_loss: bool) -> bool:
        """Continue with the edits that are left here and in the replica, in a new epoch."""
        if self._source is None:
            self.left.append(
                f"{problem} Give a replica by --from, restore meta/ from a copy, or run `kvstore meta recover`."
            )
            return False
        local = salvage(self._store, self._store_id, self._files)
        leader = local.state.leader if local.state.leader_epoch == local.leader_epoch else None
        self._source.refuse_other_leader(local.leader_epoch, leader, local.state.replicas.values())
        elsewhere = self._source.catalog()
        recovered = recovery.recover(
            *(self._store, self._store_id, self._files, self._clock), write=False, elsewhere=elsewhere
        )
        if recovered.gone and not accepts_loss:
            gone = "; ".join(recovered.gone)
            self.left.append(
                f"{problem} Neither this store nor the replica has these parts of the catalog: {gone}. --accept-loss"
                " continues without them."
            )
            return False
        recovered = recovery.recover(
            *(self._store, self._store_id, self._files, self._clock), write=True, elsewhere=elsewhere
        )
        self.repaired.append(
            f"the catalog continues after edit {recovered.txid} in epoch {recovered.leader_epoch}, with what was left"
            f" here and in the replica; the damaged catalog is in {recovered.quarantine}: {problem}"
        )
        self.gone += [f"of the catalog: {each}" for each in recovered.gone]
        return True

    def _replace_images(self, state: CatalogState, damaged: list[Path], quarantine: Quarantine) -> None:
        images = self._store / paths.IMAGES
        lock = ProcessLock(images / paths.LOCK_FILE, self._files)
        with lock.taken("Another process writes an image of the catalog; wait until it is done."):
            for path in damaged:
                quarantine.move(path)
        task = Task(
            epoch=Epoch(worker.highest_epoch(images) + 1),
            store=str(self._store),
            store_id=self._store_id,
            txid=state.txid,
            seconds=_TASK_SECONDS,
        )
        done = worker.run(task, self._files, self._clock)
        for path in damaged:
            self.repaired.append(
                f"{path.name} was damaged: moved to the quarantine; the newest image is as of edit {done.txid}"
            )
