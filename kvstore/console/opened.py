"""The store that a console shows: opened read-only when it is first asked for, and again after it was replaced."""

from __future__ import annotations

from pathlib import Path

import anyio
from starlette.concurrency import run_in_threadpool

from kvstore.errors import StoreClosed, StoreReplaced
from kvstore.options import StoreOptions
from kvstore.store.store import Store


class OpenedStore:
    """A store that may be damaged or missing now, and be there later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: Store | None = None
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
                self._store.list_tables()  # a copy that follows a replica takes the place of the one it replaced
                self._store.runtime.place.verify()
            except (StoreReplaced, StoreClosed):
                store, self._store = self._store, None
                store.close()
        if self._store is None:
            self._store = Store(self.path, StoreOptions(), read_only=True)
        return self._store

    async def close(self) -> None:
        """Close the store."""
        async with self._opening:
            store, self._store = self._store, None
            if store is not None:
                await run_in_threadpool(store.close)
