"""The catalog's edits, in LMDB: all processes add them, in one order for all.

* An edit is durable when :meth:`Journal.append` returns, unless it ``may_wait``; LMDB's own writer lock serialises
  processes.
* A process adds an edit in a transaction in which it has replayed all edits before it.
* A power cut may undo the last edits that ``may_wait``, or those in memory, because their loss does no harm; see
  ``journal_sync`` in :class:`kvstore.options.StoreOptions`.
* Segments are named databases with the first txid as the name, so that old edits are dropped a segment at a time.
* Only edits that two images have are dropped; a process that has not seen them loads an image.
* A database handle is used only for a name that the same transaction lists: another process may have dropped it.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise, zip_longest
from operator import ge
from pathlib import Path
from typing import Protocol
from uuid import UUID

import lmdb

from kvstore.clock import Clock
from kvstore.disk.environment import Transaction, open_environment
from kvstore.disk.files import Files
from kvstore.disk.lmdb_files import write_refusal
from kvstore.disk.lock import EditLock
from kvstore.errors import (
    CorruptImage,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReplaced,
    UnsupportedOperation,
    WriterFenced,
)
from kvstore.meta.image import TXID_MAX, Image, Images
from kvstore.meta.journal_segments import check_name, needed_segments, segment_name, segments_of
from kvstore.meta.leadership import Leadership
from kvstore.meta.state import CatalogState
from kvstore.options import EDITS_PER_JOURNAL, JournalSync
from kvstore.process.calls import uninterrupted
from logformat import paths
from logformat.catalog import edits
from logformat.catalog.edits import Edit, LoseLead, Payload, SetConsumer
from logformat.ids import Epoch, Txid

MAP_BYTES = 64 << 30

_EDITS_PER_READ = 1_000
"""Edits replayed in one read transaction: while one is open, LMDB can't reuse the pages that new edits free."""

_log = logging.getLogger(__name__)
_KEY = struct.Struct(">q")


def create_journal(directory: Path, files: Files, edit: Edit) -> None:
    """Create a journal that begins with an edit, and make it durable, but not its name.

    Raises:
        StoreFull: The disk is full. The directory holds no valid journal.
    """
    environment = open_environment(directory, files, map_bytes=MAP_BYTES, create=True)
    try:
        transaction = environment.begin_write()
        try:
            database = environment.database_within(transaction, segment_name(edit.txid), create=True)
            transaction.put(_KEY.pack(edit.txid), edits.encode(edit), db=database)
            transaction.commit()
        except lmdb.Error as error:
            transaction.abort()
            raise write_refusal(error, directory) from error
    finally:
        environment.close()


class JournalListener(Protocol):
    """Called when an edit was added in this process."""

    def appended(self, txid: Txid) -> None:
        """An edit was added; it must not wait, nor raise."""


class Journal:
    """The journal of one store and the state of its catalog, open in this process.

    Args:
        store: Directory of the store.
        store_id: Id of the store, which its images repeat.
        leadership: Asked before an edit is added; not when edits of a leader are replayed.
        create: Create an empty journal if there is none.
        read_only: Add no edits, and never wait for a process that adds one.
        edits_per_segment: Number of edits after which a new segment begins.
        sync: When edits that may wait become durable.
        wait_ms: How long such an edit stays in memory, in milliseconds.

    Attributes:
        images: Images of the store.
        base: Txid of the last loaded image; None if none was loaded.
        store_id: Id of the store.
    """

    def __init__(
        self,
        store: Path,
        files: Files,
        clock: Clock,
        store_id: UUID,
        *,
        leadership: Leadership,
        create: bool = False,
        read_only: bool = False,
        edits_per_segment: int = EDITS_PER_JOURNAL,
        sync: JournalSync = "SYNC",
        wait_ms: int = 100,
    ) -> None:
        self.images = Images(store / paths.IMAGES, store_id)
        self.base: Txid | None = None
        self.store_id = store_id
        self._leadership = leadership
        self._is_closed = False
        self._listeners: list[JournalListener] = []
        self._files = files
        self._looks = 0
        self._led: CatalogState | None = None  # the state for which nothing more has to be asked
        self._clock = clock
        self._edits_per_segment = edits_per_segment
        self._sync = sync
        self._wait_seconds = wait_ms / 1000
        self._waiting: list[Payload] = []
        self._shown: tuple[CatalogState, int, CatalogState] | None = None
        self._timer: threading.Timer | None = None
        self._state = CatalogState()
        self._seen = -1
        self._known = -1, self._state
        self._loaded = False
        self._mutex = threading.Lock()
        self._edit_lock = EditLock(store / paths.EDIT_LOCK, files, clock)
        try:
            self._environment = open_environment(
                store / paths.JOURNAL,
                files,
                map_bytes=MAP_BYTES,
                create=create,
                read_only=read_only,
                metasync=sync == "SYNC",
            )
        except FileNotFoundError as error:
            raise CorruptImage("The catalog of the store is missing; restore it from a copy.", path=store) from error
        self._environment.watch_commits()

    def listen(self, listener: JournalListener) -> None:
        """Have a listener called after each edit that is added here, from the thread that added it."""
        self._listeners.append(listener)

    def state(self) -> CatalogState:
        """The current catalog, including edits of other processes.

        Raises:
            CorruptImage: An edit is damaged or missing, and no valid image has it.
            UnsupportedVersion: A newer version wrote an edit or an image.
        """
        commit, state = self._known  # both as of one moment, so that no thread waits for another that edits
        if commit == self._environment.last_committed():
            return state
        with self._mutex:
            if self._environment.last_committed() != self._seen:
                self._catch_up()
            state = self._with_waiting()
            self._known = self._seen, state  # until more waits, or another edit is committed
            return state

    def show_last_commit(self) -> None:
        """Make the last committed edit visible even if its writer was killed before publishing it.

        Needed before a decision by the state to remove or write something. It waits for a process that adds an edit.
        """
        self.state()
        if self._environment.last_committed() != self._seen and not self._environment.is_read_only:
            with self._edit_lock.held(), self._environment.reading(), self._writing():
                pass  # its begin does it; see Environment.show_last_commit

    @uninterrupted
    def append(
        self, decide: Callable[[CatalogState], Payload | Sequence[Payload]], *, may_wait: bool = False
    ) -> CatalogState:
        """Add an edit; or several, all or none: no process sees the catalog between them, nor does one after a crash.

        Args:
            decide: Returns the edit or edits, given the state with all edits before them; raises to add none.
            may_wait: Whether they may become durable later, because their loss does no harm.

        Returns:
            The state with them.

        Raises:
            StoreLocked: Another process edits the catalog and does not finish. Nothing was added.
            StoreFull: The disk is full. Nothing was added.
            WriterFenced: Another process recovered the catalog, or another leader has replaced this one. Nothing was
                added.
            LogFailed: The disk failed; it is unknown whether the edit is durable.
        """
        if may_wait and self._sync == "NO_SYNC":
            return self.append_later(decide)
        return self._appended(lambda state: _several(decide(state)), durable=not may_wait)

    @uninterrupted
    def append_later(self, decide: Callable[[CatalogState], Payload | Sequence[Payload]]) -> CatalogState:
        """Add an edit, or several, together with the next one, or soon; this process sees them at once.

        It is for edits whose loss does no harm, also if another process never sees them. Raises what :meth:`append`
        does.
        """
        self.check_leads()
        with self._mutex:
            if self._is_closed:  # since it was asked whether it leads
                raise StoreClosed("The store was closed; open it again.", path=self._environment.directory)
            self._waiting += _several(decide(self._with_waiting()))
            self._known = -1, self._state
            self._wake_later()
            return self._with_waiting()

    def _appended(self, decide: Callable[[CatalogState], Sequence[Payload]], *, durable: bool) -> CatalogState:
        self.check_leads()
        with self._editing():
            state = self._with_room(partial(self._add, decide))
            if durable:
                self._make_durable()
        self._notify(state.txid)
        return state

    def check_leads(self) -> None:
        """Verify that the store may be written.

        Raises:
            WriterFenced: Another leader has replaced this one, or another process recovered the catalog.
            StoreReplaced: The store's path leads to another directory.
            UnsupportedOperation: The files of the store may only be read.
        """
        looks, state = self._files.check(), self.state()
        if looks == self._looks and state is self._led:
            return
        self._check_writable()
        if looks != self._looks:
            self._looks = looks
            self._check_current()
        self._leadership.check(self)
        self._led = None if state.replicas else state  # their answers hold for a lease only

    @uninterrupted
    def lose_lead(self, by: Epoch) -> CatalogState:
        """Add the last edit of this leader: another one has replaced it. Edits that wait in memory are dropped.

        Raises:
            StoreLocked, StoreFull, WriterFenced, LogFailed: See :meth:`append`.
        """
        with self._editing():
            self._waiting.clear()
            state = self._with_room(partial(self._add, lambda _: [LoseLead(by=by)]))
            self._make_durable()
        self._notify(state.txid)
        return state

    @uninterrupted
    def replay(self, later: Iterable[Edit], *, durable: bool = True) -> CatalogState:
        """Add edits of a leader unchanged; edits that the journal already has are skipped.

        Raises:
            CorruptImage: An edit does not follow the one before it. Nothing was added.
            StoreLocked, StoreFull, WriterFenced, LogFailed: See :meth:`append`.
        """
        self._check_writable()
        self.state()
        with self._editing():
            state = self._state = self._with_room(partial(self._add_later, list(later)))
            if durable:
                self._make_durable()
        self._notify(state.txid)
        return state

    @uninterrupted
    def flush(self) -> None:
        """Return once every edit, of any process, is durable.

        Raises:
            StoreLocked, StoreFull, WriterFenced, LogFailed: See :meth:`append`; edits in memory stay there.
        """
        if self._environment.is_read_only:
            return
        self._add_waiting()
        with self._mutex:
            self._environment.sync()

    @contextmanager
    def still(self) -> Iterator[CatalogState]:
        """The current catalog, all of it durable; while the context is open, every process waits to add an edit.

        The context must not ask the journal for anything.

        Raises:
            CorruptImage: An edit is damaged or missing.
            UnsupportedOperation: The store is read-only.
            StoreLocked: Another process edits the catalog and does not finish.
            WriterFenced: Another process recovered the catalog.
        """
        self._check_writable()
        self.flush()
        state = self._confirmed()
        # Without the mutex, so that other threads can read.
        with self._edit_lock.held(), self._environment.reading(), self._writing() as transaction:
            self._check_current()
            self._environment.sync()  # others may have added some since
            state = self._replayed(transaction, state)
            yield state

    def state_at(self, txid: Txid) -> CatalogState:
        """The catalog as of an edit, or as of a later one that was already loaded or is in the newest image.

        Raises:
            CorruptImage: The edit does not exist; or see :meth:`state`.
        """
        with self._mutex:
            if not self._loaded or self._state.txid < txid:
                self._catch_up(txid)
            if self._state.txid < txid:
                raise CorruptImage("The catalog has lost edits; run `kvstore check`.", has=self._state.txid, had=txid)
            return self._state

    def edits_after(self, txid: Txid) -> list[bytes] | None:
        """Stored bytes of the edits after one; None if the next edit was dropped."""
        with self._environment.read_databases() as transaction:
            names = segments_of(transaction)
            if not names or int(names[0]) > txid + 1:
                return None
            records: list[bytes] = []
            for name, following in zip_longest(names, names[1:]):
                if not following or int(following) > txid + 1:
                    database = self._environment.database_within(transaction, name)
                    with transaction.cursor(db=database) as cursor:
                        if cursor.set_range(_KEY.pack(txid + 1)):
                            records += [bytes(value) for value in cursor.iternext(keys=False)]
        return records

    def edits_kept(self) -> list[bytes]:
        """Stored bytes of all edits that the journal still has."""
        while True:
            if (records := self.edits_after(Txid(self.segments()[0] - 1))) is not None:
                return records  # else the first segment was dropped in between

    def segments(self) -> list[Txid]:
        """Txids of the first edits of all segments, in order."""
        return [Txid(int(name)) for name in self._listed()]

    @uninterrupted
    def drop_before(self, txid: Txid) -> int:
        """Drop the segments whose last edit is at or before one; the last segment is never dropped.

        The caller has verified two images: one of that edit or a later one, and a newer one.

        Returns:
            Number of dropped edits.

        Raises:
            StoreFull: The disk is full. Nothing was dropped.
        """
        self._check_writable()
        with self._editing(), self._writing() as transaction:
            try:
                self._check_current()
                names = segments_of(transaction)
                old = [name for name, following in pairwise(names) if int(following) <= txid + 1]
                for name in old:
                    self._environment.drop_database(transaction, name)
                transaction.commit()
            except lmdb.Error as error:
                raise write_refusal(error, self._environment.directory) from error
        return int(names[len(old)]) - int(names[0]) if old else 0

    def verify(self) -> None:
        """Verify the committed pages; see :meth:`Environment.verify`."""
        self._environment.verify()

    @uninterrupted
    def close(self) -> None:
        """Add the edits that wait in memory, and close the environment.

        Raises:
            StoreLocked, StoreFull, WriterFenced: Edits that waited could not be added, and are lost.
        """
        try:
            with suppress(StoreReplaced):  # the loss of these edits does no harm
                self._add_waiting()
        finally:
            with self._mutex:  # no other thread is reading the state now
                if self._timer is not None:
                    self._timer.cancel()
                self._waiting.clear()
                self._is_closed = True
                self._environment.close()

    def _notify(self, txid: Txid) -> None:
        for listener in self._listeners:
            listener.appended(txid)

    @contextmanager
    def _editing(self) -> Iterator[None]:
        """The state of the catalog, to be changed; no other process edits it."""
        with self._edit_lock.held(), self._mutex:  # in this order: other threads read while this one waits
            yield

    def _add_waiting(self) -> None:
        """Add the edits that wait in memory."""
        self._check_waiting()
        if self._waiting:
            with self._editing():
                if self._waiting:
                    self._with_room(partial(self._add, None))

    def _add(self, decide: Callable[[CatalogState], Sequence[Payload]] | None) -> CatalogState:
        """Add the edits in memory, and more; LMDB's mode decides whether they are durable."""
        with self.adding() as transaction:
            names = segments_of(transaction)
            state = before = self._replayed(transaction, self._state, names=names)
            for payload in self._waiting:
                if not state.lost_to and not _is_late(state, payload):
                    state = self._put(transaction, names, state, self._following(state, payload))
            if decide is not None:
                state.check_leads()
                payloads, now_ms = decide(state), self._clock.now_ms()
                for payload in payloads:
                    state = self._put(transaction, names, state, self._following(state, payload, now_ms))
            number = transaction.id()
        self._waiting.clear()
        self._shown = None
        self._state = state
        if self._loaded and state is not before:  # else LMDB gives this number to the next transaction, too
            self._seen = number
        return state

    def _add_later(self, later: Iterable[Edit]) -> CatalogState:
        with self.adding() as transaction:
            names = segments_of(transaction)
            state = self._replayed(transaction, self._state, names=names)
            for edit in later:
                if edit.txid > state.txid:
                    state = self._put(transaction, names, state, edit)
        return state

    def _with_room(self, add: Callable[[], CatalogState]) -> CatalogState:
        """Add edits; a map that has no room for them is enlarged first."""
        while True:
            try:
                return add()
            except lmdb.MapFullError:
                self._environment.grow()

    @contextmanager
    def adding(self) -> Iterator[Transaction]:
        """A write transaction that commits at the end."""
        with self._writing() as transaction:
            try:
                self._check_current()
                yield transaction
                transaction.commit()
            except lmdb.MapFullError:
                raise
            except lmdb.Error as error:
                raise write_refusal(error, self._environment.directory) from error
            except OSError as error:
                raise StoreFull("The disk failed; free some space.", reason=str(error)) from error

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """The write transaction, aborted at the end if it was not committed; the caller holds the edit lock."""
        transaction = self._environment.begin_write()
        with self._environment.handles:
            try:
                yield transaction
            finally:
                # A traceback that is kept would keep it open, and every process would wait for it.
                transaction.abort()

    def _put(self, transaction: Transaction, names: list[str], state: CatalogState, edit: Edit) -> CatalogState:
        if not names or edit.txid - int(names[-1]) >= self._edits_per_segment:
            names.append(segment_name(edit.txid))
        database = self._environment.database_within(transaction, names[-1], create=True)
        after = state.after(edit)
        transaction.put(_KEY.pack(edit.txid), edits.encode(edit), db=database)
        return after

    def _following(self, state: CatalogState, payload: Payload, now_ms: int | None = None) -> Edit:
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        return Edit(txid=Txid(state.txid + 1), epoch=state.leader_epoch, time_ms=now_ms, payload=payload)

    def _make_durable(self) -> None:
        if self._sync != "SYNC":
            self._environment.sync()

    def _with_waiting(self) -> CatalogState:
        """The state including edits in memory, which have no txid yet."""
        if not self._waiting:
            return self._state
        base, done, state = self._shown or (None, 0, self._state)
        if base is not self._state:
            done, state = 0, self._state
        for payload in self._waiting[done:]:
            if _is_late(state, payload):
                continue
            state = replace(state.after(self._following(state, payload)), txid=self._state.txid)
        self._shown = self._state, len(self._waiting), state
        return state

    def _confirmed(self) -> CatalogState:
        self.state()
        return self._state

    def _wake_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._wait_seconds, self._wake)
            self._timer.daemon = True
            self._timer.start()

    def _wake(self) -> None:
        self._check_waiting()
        try:
            try:
                with self._editing():
                    self._timer = None
                    if not self._waiting:
                        return
                    state = self._with_room(partial(self._add, None))
                    self._make_durable()
            except StoreError:
                with self._mutex:
                    self._timer = None
                    if self._waiting:
                        self._wake_later()
                raise
            self._notify(state.txid)
        except StoreError as error:
            # The next append, or the close, raises it.
            _log.warning("edits of the catalog could not be added, and stay in memory: %s", error)

    def _check_waiting(self) -> None:
        """Ask whether edits in memory may be added: adding skips them once the leadership is lost."""
        if self._waiting:
            with suppress(StoreError):
                self.check_leads()

    def _check_writable(self) -> None:
        if self._environment.is_read_only:
            raise UnsupportedOperation("The files of this store may only be read.", path=self._environment.directory)

    def _check_current(self) -> None:
        """Verify that this is still the store's journal; only in a write transaction does it stay so."""
        self._files.verify(self._environment.directory)
        if self._environment.is_stale():
            raise WriterFenced(
                "The catalog was recovered by another process; open the store again.",
                path=self._environment.directory,
            )

    def _catch_up(self, last: Txid = TXID_MAX) -> None:
        if not self._loaded and (newest := self.images.newest()) is not None:
            # Before the journal is read, which then is not older.
            self.base, self._state = newest.head.txid, newest.state
        self._loaded = True
        while self._state.txid < last:
            until = min(last, Txid(self._state.txid + _EDITS_PER_READ))
            with self._environment.read_databases() as transaction:
                self._state = self._replayed(transaction, self._state, until)
                if self._state.txid < until:
                    self._seen = transaction.id()
                    return

    def _listed(self) -> list[str]:
        with self._environment.read() as transaction:
            return segments_of(transaction)

    def _replayed(
        self, transaction: Transaction, state: CatalogState, last: Txid = TXID_MAX, *, names: list[str] | None = None
    ) -> CatalogState:
        """The state after the edits that follow it, up to one, of segments of these names."""
        names = segments_of(transaction) if names is None else names
        if names and int(names[0]) > state.txid + 1:
            with transaction.cursor(db=self._environment.database_within(transaction, names[0])) as cursor:
                check_name(cursor, names[0])
            image = self._image_before(Txid(int(names[0])))
            self.base, state = image.head.txid, image.state
        for name in needed_segments(names, state):
            database = self._environment.database_within(transaction, name)
            with transaction.cursor(db=database) as cursor:
                check_name(cursor, name)
                if cursor.set_range(_KEY.pack(state.txid + 1)):
                    for key, value in cursor.iternext():
                        edit = edits.decode(value)
                        if _KEY.pack(edit.txid) != key:
                            raise CorruptImage("An edit of the catalog is out of place; run `kvstore check`.")
                        if (gone := state.lacks(edit.payload)) is not None:
                            _log.warning("edit %d of the catalog is about %s, which is gone", edit.txid, gone)
                        state = state.after(edit)
                        if state.txid >= last:
                            return state
                elif name == names[-1] and cursor.last() and cursor.key() != _KEY.pack(state.txid):
                    raise self._too_old(int.from_bytes(cursor.key(), "big"), state)
        if not names and state.txid:
            raise self._too_old(0, state)
        return state

    def _image_before(self, first: Txid) -> Image:
        """The newest valid image, provided that the journal has the next edit."""
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


def _several(given: Payload | Sequence[Payload]) -> Sequence[Payload]:
    return [given] if isinstance(given, Payload) else given


def _is_late(state: CatalogState, payload: Payload) -> bool:
    """Whether an edit that waited is obsolete, because another process has changed the same thing meanwhile."""
    if state.lacks(payload) is not None:
        return True
    if not isinstance(payload, SetConsumer):
        return False
    consumer = state.consumers_of(payload.table_id).named.get(payload.name)
    return (
        consumer is None or consumer.until_ms != payload.until_ms or not all(map(ge, payload.offsets, consumer.offsets))
    )
