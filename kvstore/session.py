"""One open store: its use of the runtime, and what it may do."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from kvstore.calls import in_background, uninterrupted
from kvstore.clock import Clock
from kvstore.errors import ForkedStore, StoreClosed, UnsupportedOperation
from kvstore.files import Files
from kvstore.meta.leadership import Leadership
from kvstore.options import StoreOptions
from kvstore.runtime import Elsewhere, StoreRuntime, shared_runtime
from logformat import paths


class Session:
    """Opens a store, checks every call on it, and closes it; from any thread, but not across ``fork()``.

    Args:
        path: Directory of the store.
        options: Settings of the store in this process.
        read_only: Whether tables may only be read.
        registers: Whether consumers and leases may be registered; None: if the store may be written.
        leadership, elsewhere: See :class:`kvstore.runtime.StoreRuntime`.

    Attributes:
        runtime: State that this process shares for the directory.
        follows: Whether the store is a copy that follows a replica.

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
        elsewhere: Elsewhere,
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
        self._join(path, options, files, clock, leadership, elsewhere)

    @uninterrupted
    def _join(
        self,
        path: Path,
        options: StoreOptions,
        files: Files,
        clock: Clock,
        leadership: Leadership,
        elsewhere: Elsewhere,
    ) -> None:
        self.runtime = shared_runtime(self._use, path, options, self.read_only, files, clock, leadership, elsewhere)

    def __del__(self) -> None:
        """Close a store without references, which its user can't close any more."""
        runtime: StoreRuntime | None = getattr(self, "runtime", None)
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
        self._is_closing = True
        try:
            self.runtime.release(self._use)
        finally:
            self._is_closed = True

    def check_open(self) -> None:
        """Refuse calls on a store that is closed, was opened before a ``fork()``, or whose directory was replaced.

        Raises:
            StoreClosed, ForkedStore, StoreReplaced: It is.
        """
        if self.runtime.pid != os.getpid():
            raise ForkedStore("The store was opened before a fork(); open it again in this process.")
        if self._is_closing:
            raise StoreClosed("The store was closed; open it again.", path=self.runtime.path)
        self.runtime.place.check()

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
