"""A catalog to make checkpoints of: a journal with short segments, beside what its edits make of an empty one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec

from kvstore.checkpoint import recovery
from kvstore.checkpoint.controller import Controller
from kvstore.checkpoint.messages import Task
from kvstore.checkpoint.process import Running
from kvstore.disk.files import Files
from kvstore.meta import image
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.meta.state import CatalogState
from logformat import paths
from logformat.catalog.edits import BeginEpoch, Edit, Payload
from logformat.ids import Txid
from tests.support.clocks import SetClock
from tests.support.edits import payload
from tests.support.image_workers import Here

STORE = UUID(int=9)
EDITS_PER_SEGMENT = 7


def encoded(state: CatalogState) -> bytes:
    """The same for equal states."""
    ids = state.txid, state.leader_epoch, state.leader, state.lost_to, state.next_table_id, state.next_writer_id
    return msgspec.json.encode((ids, list(image.items_of(state))))


class Catalog:
    """Edits go to the journal and, one by one, to ``expected``."""

    def __init__(self, path: Path, seed: int = 1, *, files: Files | None = None) -> None:
        self.path = path
        self.random = Random(seed)
        self.clock = SetClock()
        self.files = files or Files()
        self.expected = CatalogState()
        self.edits: list[Edit] = []
        if not path.exists():
            path.mkdir()
            (path / "meta").mkdir()
        self.journal = self.opened(create=True)

    @classmethod
    def at(cls, path: Path) -> Catalog:
        """The catalog of a store that is there; nothing is known of its edits."""
        catalog = cls.__new__(cls)
        catalog.path = path
        return catalog

    def opened(self, *, create: bool = False) -> Journal:
        """One more, that knows nothing yet."""
        return Journal(
            self.path,
            self.files,
            self.clock,
            STORE,
            create=create,
            edits_per_segment=EDITS_PER_SEGMENT,
            leadership=CatalogLeadership(),
        )

    def controller(self, start: Callable[[Task], Running] | None = None) -> Controller:
        begin = start or (lambda task: Here(task, self.files, self.clock))
        return Controller(self.path, STORE, self.journal, self.files, self.clock, start=begin)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.clock.now += 1
            self.journal.append(self._decide)
            self.expected = self.expected.after(self.edits[-1])

    def _decide(self, state: CatalogState) -> Payload:
        made = payload(self.random, state)
        self.edits.append(
            Edit(txid=Txid(state.txid + 1), epoch=state.leader_epoch, time_ms=self.clock.now, payload=made)
        )
        return made

    def reopen(self) -> None:
        self.journal.close()
        self.journal = self.opened()

    def make_files(self) -> None:
        """Directories of the tables, and files for the rows of open commits: without them a recovery drops them."""
        (self.path / paths.STAGING).mkdir(exist_ok=True)
        for id in self.expected.tables:
            (self.path / paths.TABLES / str(id)).mkdir(parents=True, exist_ok=True)
        for writers in self.expected.writers.values():
            for commit in writers.commits:
                paths.staged_file(self.path, commit.commit_id).touch()

    def recover(self) -> recovery.Recovery:
        """Go on with it under a new epoch; it is whole."""
        self.make_files()
        done = recovery.recover(self.path, STORE, self.files, self.clock, write=True)
        self.reopen()
        leader = BeginEpoch(leader=self.journal.state().leader)
        begin = Edit(txid=done.txid, epoch=done.leader_epoch, time_ms=self.clock.now, payload=leader)
        self.edits.append(begin)
        self.expected = self.expected.after(begin)
        return done

    def reloaded(self) -> CatalogState:
        """The state that a new journal loads from images and edits."""
        journal = self.opened()
        try:
            return journal.state()
        finally:
            journal.close()

    def from_zero(self) -> CatalogState:
        state = CatalogState()
        for edit in self.edits:
            state = state.after(edit)
        return state

    @property
    def image_txids(self) -> list[Txid]:
        return image.txids(self.path / paths.IMAGES)

    def image_path(self, place: int = 0) -> Path:
        return paths.image_file(self.path / paths.IMAGES, self.image_txids[place])

    @property
    def first_edit(self) -> int:
        """Where the journal begins."""
        return self.journal.segments()[0]

    def assert_reachable(self) -> None:
        """From each image that is there, and from the one before should it be damaged, the journal reaches the end."""
        assert self.reloaded().is_same(self.expected), "edits are lost"
        found = list(image.Images(self.path / paths.IMAGES, STORE).usable())
        assert [each.head.txid for each in found] == self.image_txids, "one that has its name is not right"
        if self.first_edit > 1:
            assert len(found) >= 2, "segments are gone, and there is one image at most"
            assert self.first_edit <= found[1].head.txid + 1, "segments are gone that only the newest image has"

    @contextmanager
    def found_at(self, path: Path) -> Iterator[Catalog]:
        """The same, as a crash left it elsewhere."""
        catalog = Catalog.__new__(Catalog)
        catalog.__dict__.update({**self.__dict__, "path": path, "edits": list(self.edits)})
        catalog.journal = catalog.opened()
        try:
            yield catalog
        finally:
            catalog.journal.close()


def controller(path: Path, journal: Journal, files: Files, clock: SetClock) -> Controller:
    """One whose worker is in this process."""
    return Controller(path, STORE, journal, files, clock, start=lambda task: Here(task, files, clock))


def checkpoint(path: Path) -> None:
    """Make a checkpoint of a catalog that is there."""
    files, clock = Files(), SetClock()
    journal = Journal(path, files, clock, STORE, leadership=CatalogLeadership())
    controller(path, journal, files, clock).checkpoint()
    journal.close()
