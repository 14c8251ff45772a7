"""The catalog's edits, in LMDB: any process adds one, in one order all agree on.

* An edit is durable when :meth:`Journal.append` returns; LMDB's own writer lock serialises processes.
* Whoever adds an edit has replayed all before it, in the same transaction.
* Edits live in named databases, each named by its first txid, so that old ones are dropped as a whole.
* What was dropped is in an image: whoever has not seen it loads that. Only what images stand for is ever dropped.
* A handle is used for a name that the same transaction lists, and for no other: another process may have dropped it.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, zip_longest
from pathlib import Path
from uuid import UUID

import lmdb

from kvstore.clock import Clock
from kvstore.environment import Transaction, open_environment
from kvstore.errors import CorruptData, CorruptImage, StoreFull, UnsupportedOperation
from kvstore.files import Files
from kvstore.meta.image import TXID_MAX, Image, Images
from kvstore.meta.state import CatalogState
from logformat import edits, paths
from logformat.edits import Edit, Payload
from logformat.ids import Epoch, Txid

EDITS_PER_SEGMENT = 50_000
MAP_BYTES = 64 << 30

_EDITS_PER_READ = 1_000
"""Edits replayed in one read transaction: while one is open, pages that edits free are not used again."""

_log = logging.getLogger(__name__)
_KEY = struct.Struct(">q")
_NAME_DIGITS = 20


class Journal:
    """The catalog of one store, as this process knows it.

    Args:
        store: Directory of the store.
        store_id: Of the store, which its images repeat.
        create: Create an empty journal if there is none.
        read_only: Add no edits, and never wait for whoever does.
        edits_per_segment: A new database is begun after so many edits.
        appended: Called with the txid of each edit that was added here.

    Attributes:
        images: Those of the store.
        base: Txid of the image that was loaded last; None if there was none to load.
    """

    def __init__(
        self,
        store: Path,
        files: Files,
        clock: Clock,
        store_id: UUID,
        *,
        create: bool = False,
        read_only: bool = False,
        edits_per_segment: int = EDITS_PER_SEGMENT,
        appended: Callable[[Txid], None] = lambda _: None,
    ) -> None:
        self.images = Images(store / paths.IMAGES, store_id)
        self.base: Txid | None = None
        self._appended = appended
        self._clock = clock
        self._edits_per_segment = edits_per_segment
        self._state = CatalogState()
        self._seen = -1
        self._loaded = False
        self._mutex = threading.Lock()
        try:
            self._environment = open_environment(
                store / paths.JOURNAL, files, map_bytes=MAP_BYTES, create=create, read_only=read_only
            )
        except FileNotFoundError as error:
            raise CorruptImage("The catalog of the store is missing; restore it from a copy.", path=store) from error

    def state(self) -> CatalogState:
        """The catalog as of now, edits of other processes included.

        Raises:
            CorruptImage: An edit is damaged or missing, and no image that is right has it.
            UnsupportedVersion: A newer version wrote an edit or an image.
        """
        with self._mutex:
            if self._environment.last_committed() != self._seen:
                self._catch_up()
            return self._state

    def show_last_commit(self) -> None:
        """Have :meth:`state` know the last edit also if its writer was killed before it could say so.

        For whoever decides by the state what to remove or to write; it waits for whoever adds an edit.
        """
        self.state()
        if self._environment.last_committed() != self._seen and not self._environment.is_read_only:
            self._environment.show_last_commit()

    def append(self, decide: Callable[[CatalogState], Payload]) -> CatalogState:
        """Add an edit and make it durable.

        Args:
            decide: From the state with every edit before this one, what the edit does; raises to add none.

        Returns:
            The state with the edit.

        Raises:
            StoreFull: No space. Nothing was added.
        """
        self._check_writable()
        self.state()
        with self._mutex:
            transaction = self._environment.begin_write()
            try:
                state = self._replayed(transaction, self._state)
                payload = decide(state)
                edit = Edit(txid=Txid(state.txid + 1), epoch=Epoch(0), time_ms=self._clock.now_ms(), payload=payload)
                state = state.after(edit)
                names = _segments(transaction)
                if not names or edit.txid - int(names[-1]) >= self._edits_per_segment:
                    names.append(_name(edit.txid))
                database = self._environment.database_within(transaction, names[-1], create=True)
                transaction.put(_KEY.pack(edit.txid), edits.encode(edit), db=database)
                transaction.commit()
            except lmdb.Error as error:
                transaction.abort()
                raise StoreFull("The catalog can't be written; free some space.", reason=str(error)) from error
            except OSError as error:
                transaction.abort()
                raise StoreFull("The disk refuses; free some space.", reason=str(error)) from error
            except BaseException:
                # Whoever keeps the traceback would keep the transaction, and every process would wait for it.
                transaction.abort()
                raise
            self._state = state
        self._appended(state.txid)
        return state

    @contextmanager
    def still(self) -> Iterator[CatalogState]:
        """The catalog as of now, and nobody in any process adds an edit meanwhile: whoever wants to waits.

        Raises:
            CorruptImage: An edit is damaged or missing.
            UnsupportedOperation: The files may only be read.
        """
        self._check_writable()
        state = self.state()
        # Without the mutex: who appends holds it, and waits for LMDB's lock, which this here has.
        with self._environment.reading():
            transaction = self._environment.begin_write()
        try:
            with self._environment.reading():
                state = self._replayed(transaction, state)
            yield state
        finally:
            transaction.abort()

    def state_at(self, txid: Txid) -> CatalogState:
        """The catalog as of an edit; as of a later one if that was known already, or is in the newest image.

        Raises:
            CorruptImage: There is no such edit; or see :meth:`state`.
        """
        with self._mutex:
            if not self._loaded or self._state.txid < txid:
                self._catch_up(txid)
            if self._state.txid < txid:
                raise CorruptImage("The catalog has lost edits; run `kvstore check`.", has=self._state.txid, had=txid)
            return self._state

    def segments(self) -> list[Txid]:
        """First edits of the segments there are, in order."""
        return [Txid(int(name)) for name in self._listed()]

    def drop_before(self, txid: Txid) -> int:
        """Drop the segments all of whose edits are at or before one; the last segment never goes.

        The caller has found right two images: one of that edit or a later one, and a newer one than that.

        Returns:
            How many edits went.

        Raises:
            StoreFull: No space. Nothing was dropped.
        """
        self._check_writable()
        with self._mutex, self._environment.reading():
            transaction = self._environment.begin_write()
            try:
                names = _segments(transaction)
                old = [name for name, following in pairwise(names) if int(following) <= txid + 1]
                for name in old:
                    self._environment.drop_database(transaction, name)
                transaction.commit()
            except lmdb.Error as error:
                transaction.abort()
                raise StoreFull("The catalog can't be written; free some space.", reason=str(error)) from error
            except BaseException:
                transaction.abort()
                raise
        return int(names[len(old)]) - int(names[0]) if old else 0

    def verify(self) -> None:
        """Verify the pages of what is committed; see :meth:`Environment.verify`."""
        self._environment.verify()

    def close(self) -> None:
        """Give the environment up."""
        with self._mutex:  # who asks for the state in another thread is not in the middle of it
            self._environment.close()

    def _check_writable(self) -> None:
        if self._environment.is_read_only:
            raise UnsupportedOperation("The files of this store may only be read.", path=self._environment.directory)

    def _catch_up(self, last: Txid = TXID_MAX) -> None:
        if not self._loaded and (newest := self.images.newest()) is not None:
            # Before the journal is looked at, which then is not older.
            self.base, self._state = newest.head.txid, newest.state
        self._loaded = True
        while self._state.txid < last:
            until = min(last, Txid(self._state.txid + _EDITS_PER_READ))
            for name in _needed(self._listed(), self._state):
                try:
                    self._environment.database(name)
                except CorruptData:
                    if name in self._listed():
                        raise
                    # Dropped meanwhile: an image has it.
            with self._environment.read() as transaction:
                self._state = self._replayed(transaction, self._state, until)
                if self._state.txid < until:
                    self._seen = transaction.id()
                    return

    def _listed(self) -> list[str]:
        with self._environment.read() as transaction:
            return _segments(transaction)

    def _replayed(self, transaction: Transaction, state: CatalogState, last: Txid = TXID_MAX) -> CatalogState:
        """The state with the edits behind it, up to one."""
        names = _segments(transaction)
        if names and int(names[0]) > state.txid + 1:
            with transaction.cursor(db=self._environment.database_within(transaction, names[0])) as cursor:
                _check_name(cursor, names[0])
            image = self._image_before(Txid(int(names[0])))
            self.base, state = image.head.txid, image.state
        for name in _needed(names, state):
            database = self._environment.database_within(transaction, name)
            with transaction.cursor(db=database) as cursor:
                _check_name(cursor, name)
                if cursor.set_range(_KEY.pack(state.txid + 1)):
                    for key, value in cursor.iternext():
                        edit = edits.decode(value)
                        if _KEY.pack(edit.txid) != key:
                            raise CorruptImage("An edit of the catalog is out of place; run `kvstore check`.")
                        if (gone := state.lacks(edit.payload)) is not None:
                            _log.warning("edit %d of the catalog is about table %d, which is gone", edit.txid, gone)
                        state = state.after(edit)
                        if state.txid >= last:
                            return state
                elif name == names[-1] and cursor.last() and cursor.key() != _KEY.pack(state.txid):
                    raise self._too_old(int.from_bytes(cursor.key(), "big"), state)
        if not names and state.txid:
            raise self._too_old(0, state)
        return state

    def _image_before(self, first: Txid) -> Image:
        """The newest image that is right, if the journal goes on behind it."""
        image = self.images.newest()
        if image is None or image.head.txid + 1 < first:
            reached = 0 if image is None else image.head.txid
            raise CorruptImage(
                "Edits of the catalog are neither in an image nor in the journal; restore an image from a copy.",
                missing=f"{reached + 1} to {first - 1}",
                journal_begins=first,
                path=self.images.directory,
                damaged=[str(each) for each in self.images.damaged],
            )
        return image

    def _too_old(self, last: int, state: CatalogState) -> CorruptImage:
        return CorruptImage(
            "The journal of the catalog ends before what is known of it: it is an older copy; restore the newest one.",
            path=self._environment.directory,
            journal_ends=last,
            known=state.txid,
        )


def _segments(transaction: Transaction) -> list[str]:
    with transaction.cursor() as cursor:
        names = [bytes(name) for name in cursor.iternext(values=False)]
    for name in names:
        if len(name) != _NAME_DIGITS or not name.isdigit():
            raise CorruptImage("A segment of the catalog has a damaged name; run `kvstore check`.", name=name)
    return [name.decode() for name in names]


def _check_name(cursor: lmdb.Cursor[bytes], name: str) -> None:
    if not cursor.first() or _name(Txid(int.from_bytes(cursor.key(), "big"))) != name:
        raise CorruptImage("A segment of the catalog has a wrong name; run `kvstore check`.", name=name)


def _needed(names: list[str], state: CatalogState) -> list[str]:
    """Segments that may have edits which are not in a state; the last one always."""
    return [
        name for name, following in zip_longest(names, names[1:]) if not following or int(following) > state.txid + 1
    ]


def _name(first: Txid) -> str:
    return f"{first:0{_NAME_DIGITS}d}"
