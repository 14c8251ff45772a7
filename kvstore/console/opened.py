"""The store that a console shows: opened read-only when it is first asked for, and again after it was replaced."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
from starlette.concurrency import run_in_threadpool

from kvstore import Store, StoreOptions
from kvstore.errors import StoreClosed, StoreReplaced


class OpenedStore:
    """A store that may be damaged or missing now, and be there later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: Store | None = None
        self._directory: tuple[int, int] | None = None
        self._opening = anyio.Lock()

    async def get(self) -> Store:
        """The store in the directory, opened again if another one took its place.

        Raises:
            StoreError: It can't be opened; see :func:`kvstore.open`. The next call tries again.
        """
        async with self._opening:
            return await run_in_threadpool(self._current)

    def _current(self) -> Store:
        if self._store is not None:
            try:
                # It raises if a page found that a directory was replaced. A copy that follows a replica takes the place
                # of the one it replaced.
                self._store.list_tables()
                is_there = _directory(self.path) == self._directory
            except (StoreReplaced, StoreClosed):
                is_there = False
            if not is_there:
                store, self._store = self._store, None
                store.close()
        if self._store is None:
            self._directory = _directory(self.path)  # before it is opened: then a newer one is found the next time
            self._store = Store(self.path, StoreOptions(), read_only=True)
        return self._store

    async def close(self) -> None:
        """Close the store."""
        async with self._opening:
            store, self._store = self._store, None
            if store is not None:
                await run_in_threadpool(store.close)


def _directory(path: Path) -> tuple[int, int] | None:
    """What distinguishes a directory from any other at its path; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
