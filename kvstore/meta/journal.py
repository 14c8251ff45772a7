"""The catalog's edits, in LMDB: any process adds one, in one order all agree on.

* An edit is durable when :meth:`Journal.append` returns; LMDB's own writer lock serialises processes.
* Whoever adds an edit has replayed all before it, in the same transaction.
* Edits live in named databases, each named by its first txid, so that old ones are dropped as a whole.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import lmdb

from kvstore.clock import Clock
from kvstore.environment import Transaction, open_environment
from kvstore.errors import CorruptImage, StoreFull, UnsupportedOperation
from kvstore.files import Files
from kvstore.meta.state import CatalogState
from logformat import edits, paths
from logformat.edits import Edit, Payload
from logformat.ids import Epoch, Txid

EDITS_PER_SEGMENT = 50_000
MAP_BYTES = 64 << 30

_KEY = struct.Struct(">q")
_NAME_DIGITS = 20


class Journal:
    """The catalog of one store, as this process knows it.

    Args:
        store: Directory of the store.
        create: Create an empty journal if there is none.
        edits_per_segment: A new database is begun after so many edits.
    """

    def __init__(
        self,
        store: Path,
        files: Files,
        clock: Clock,
        *,
        create: bool = False,
        edits_per_segment: int = EDITS_PER_SEGMENT,
    ) -> None:
        self._clock = clock
        self._edits_per_segment = edits_per_segment
        self._state = CatalogState()
        self._seen = -1
        self._mutex = threading.Lock()
        try:
            self._environment = open_environment(store / paths.JOURNAL, files, map_bytes=MAP_BYTES, create=create)
        except FileNotFoundError as error:
            raise CorruptImage("The catalog of the store is missing; restore it from a copy.", path=store) from error

    def state(self) -> CatalogState:
        """The catalog as of now, edits of other processes included.

        Raises:
            CorruptImage: An edit is damaged or missing.
            UnsupportedVersion: A newer version wrote one.
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

    def _catch_up(self) -> None:
        with self._environment.read() as transaction:
            names = _segments(transaction)
        for name in names:
            self._environment.database(name)
        with self._environment.read() as transaction:
            self._state = self._replayed(transaction, self._state)
            self._seen = transaction.id()

    def _replayed(self, transaction: Transaction, state: CatalogState) -> CatalogState:
        names = _segments(transaction)
        for name, following in zip_longest(names, names[1:]):
            if following is not None and int(following) <= state.txid + 1:
                continue
            database = self._environment.database_within(transaction, name)
            with transaction.cursor(db=database) as cursor:
                if not cursor.first() or _name(Txid(int.from_bytes(cursor.key(), "big"))) != name:
                    raise CorruptImage("A segment of the catalog has a wrong name; run `kvstore check`.", name=name)
                if cursor.set_range(_KEY.pack(state.txid + 1)):
                    for key, value in cursor.iternext():
                        edit = edits.decode(value)
                        if _KEY.pack(edit.txid) != key:
                            raise CorruptImage("An edit of the catalog is out of place; run `kvstore check`.")
                        state = state.after(edit)
        return state


def _segments(transaction: Transaction) -> list[str]:
    with transaction.cursor() as cursor:
        names = [bytes(name) for name in cursor.iternext(values=False)]
    for name in names:
        if len(name) != _NAME_DIGITS or not name.isdigit():
            raise CorruptImage("A segment of the catalog has a damaged name; run `kvstore check`.", name=name)
    return [name.decode() for name in names]


def _name(first: Txid) -> str:
    return f"{first:0{_NAME_DIGITS}d}"
