"""One open store: its use of the runtime, and what it may do."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.errors import ForkedStore, StoreClosed, StoreReplaced, UnsupportedOperation
from kvstore.meta.leadership import Leadership
from kvstore.meta.table_catalog import TableCatalog
from kvstore.options import StoreOptions
from kvstore.process import this_process
from kvstore.process.calls import in_background, uninterrupted
from kvstore.store.runtime import StoreRuntime, shared_runtime
from kvstore.table.open_table import OpenTable
from logformat import paths

_FORMER_LOOKS = 20
"""After so many checks of the path, a copy that was replaced is closed: that is after five seconds or more."""


class TableOfCopy(Protocol):
    """A table of a copy that follows a replica: a :class:`kvstore.Table`."""

    def use(self, opened: OpenTable) -> None:
        """Read from now on what is open of the copy that has replaced the table's."""

    def use_catalog(self, catalog: TableCatalog) -> None:
        """Ask another catalog whether the table is there."""


class Session:
    """Opens a store, checks every call on it, and closes it; from any thread, but not across ``fork()``.

    Args:
        path: Directory of the store.
        options: Settings of the store in this process.
        read_only: Whether tables may only be read.
        registers: Whether consumers and leases may be registered; None: if the store may be written.
        leadership: See :class:`kvstore.store.runtime.StoreRuntime`.

    Attributes:
        runtime: State that this process shares for the directory.
        follows: Whether the store is a copy that follows a replica.
        tables: Tables of a copy that users of the store have.

    Raises:
        UnsupportedOperation: A copy that follows a replica is opened for writing.
        StoreError: See :func:`kvstore.open`.
    """

    runtime: StoreRuntime

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        files: Files,
        clock: Clock,
        leadership: Leadership,
        *,
        read_only: bool,
        registers: bool | None,
    ) -> None:
        self.follows = _follows(path)
        if not read_only:
            check_follows_not(path)
        self.read_only = read_only
        self._registers = (not read_only if registers is None else registers) and not self.follows
        self._is_closing = self._is_closed = False
        self._use = object()
        self._former: StoreRuntime | None = None
        self._rebuilding = threading.Lock()
        self.tables: weakref.WeakKeyDictionary[TableOfCopy, TableCatalog] = weakref.WeakKeyDictionary()
        self._join(path, options, files, clock, leadership)

    @uninterrupted
    def _join(
        self,
        path: Path,
        options: StoreOptions,
        files: Files,
        clock: Clock,
        leadership: Leadership,
    ) -> None:
        self._open = partial(shared_runtime, self._use, path, options, self.read_only)
        self._given = clock, leadership
        self.runtime = self._open(files, *self._given)

    def __del__(self) -> None:
        """Close a store without references, which its user can't close any more."""
        for name in ("_former", "runtime"):
            runtime: StoreRuntime | None = getattr(self, name, None)
            if runtime is not None and runtime.has(self._use) and runtime.pid == os.getpid():
                in_background(partial(runtime.abandon, self._use))

    def close(self) -> None:
        """Close the store; a second call does nothing, or completes a close that was interrupted.

        Raises:
            LogFailed, StoreFull: Not everything could be committed. The store is given up all the same.
        """
        if not self._is_closed:
            self._close()

    @uninterrupted
    def _close(self) -> None:
        with self._rebuilding:
            self._is_closing = True
            try:
                self._release_former()
                self.runtime.release(self._use)
            finally:
                self._is_closed = True

    def check_open(self) -> None:
        """Refuse calls on a store that is closed, was opened before a ``fork()``, or whose directory was replaced.

        Raises:
            StoreClosed, ForkedStore: It is.
            StoreReplaced: It is. A copy that was replaced by its follower is opened again instead.
        """
        if self.runtime.pid != this_process.pid:
            raise ForkedStore("The store was opened before a fork(); open it again in this process.")
        if self._is_closing:
            self._check_not_closed()
        try:
            looks = self.runtime.held.check()
            if self.follows and self.read_only:  # no call begins in a copy that was replaced
                self.runtime.held.verify()
        except StoreReplaced:
            if not (self.follows and self.read_only):
                raise
            self._take_rebuilt()
        else:
            if self._former is not None and looks >= _FORMER_LOOKS:
                self._end_former()

    def _check_not_closed(self) -> None:
        if self._is_closing:
            raise StoreClosed("The store was closed; open it again.", path=self.runtime.path)

    @uninterrupted
    def _take_rebuilt(self) -> None:
        """Open the copy that has replaced this one; any thread may do so, and several at once.

        Raises:
            StoreReplaced: It is a copy of another store.
            StoreError: It can't be opened; the next call tries again.
        """
        with self._rebuilding:
            self._check_not_closed()
            former, opened = self.runtime, self._open(Files(), *self._given)
            if opened is former:  # another thread has been here, or the directory is back
                return
            if opened.store_id != former.store_id:
                opened.release(self._use)
                former.held.verify()
                return
            self._release_former()
            # Reads that have begun continue in it for a while.
            self.runtime, self._former = opened, former
            for table, handle in list(self.tables.items()):
                if (definition := opened.catalog().tables.get(handle.table)) is not None:
                    table.use(opened.open_table(definition))
                else:
                    table.use_catalog(replace(handle, journal=opened.journal))

    @uninterrupted
    def _end_former(self) -> None:
        with self._rebuilding:
            self._release_former()

    def _release_former(self) -> None:
        former, self._former = self._former, None
        if former is not None and former is not self.runtime:
            former.release(self._use)

    @property
    def copy(self) -> Path | None:
        """The directory, if it is a copy that still follows a replica."""
        return self.runtime.path if self.follows and _follows(self.runtime.path) else None

    def check_writable(self) -> None:
        """Verify that the store may be written.

        Raises:
            UnsupportedOperation: The store was opened read-only, or follows a replica.
        """
        self.check_open()
        if self.follows:
            check_follows_not(self.runtime.path)
        if self.read_only:
            raise UnsupportedOperation("The store was opened read-only; open it for writing.", path=self.runtime.path)

    def check_registers(self) -> None:
        """Verify that readers may be registered.

        Raises:
            UnsupportedOperation: The store was opened read-only.
        """
        if not self._registers:
            self.check_writable()
        self.check_open()


def check_follows_not(path: Path) -> None:
    """Verify that the store is not a copy that follows a replica.

    Raises:
        UnsupportedOperation: It is one.
    """
    if _follows(path):
        raise UnsupportedOperation(
            "This copy follows a replica: open it with read_only=True, write where its leader is, or have it take the"
            " leader's place (`kvstore replica promote`).",
            path=path,
        )


def _follows(path: Path) -> bool:
    # False also if that can't be seen: then it can't be opened, and the error of that says why.
    return os.path.exists(path.expanduser() / paths.FOLLOWING)
