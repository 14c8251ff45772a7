"""The store that a console shows: opened read-only when it is first asked for, and again after it was replaced."""

from __future__ import annotations

from pathlib import Path

import anyio
from starlette.concurrency import run_in_threadpool

from kvstore.errors import StoreClosed, StoreError, StoreReplaced
from kvstore.options import StoreOptions
from kvstore.store import Store


class OpenedStore:
    """A store that may be damaged or missing now, and be there later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: Store | None = None
        self._opening = anyio.Lock()

    async def get(self) -> Store:
        """The open store.

        Raises:
            StoreError: It can't be opened; see :func:`kvstore.open`. The next call tries again.
        """
        async with self._opening:
            if self._store is None:
                self._store = await run_in_threadpool(Store, self.path, StoreOptions(), read_only=True)
            return self._store

    async def after(self, error: StoreError) -> None:
        """Close the store if the error says that another directory is in its place; the next call opens that one."""
        if isinstance(error, (StoreReplaced, StoreClosed)):
            await self.close()

    async def close(self) -> None:
        """Close the store."""
        async with self._opening:
            store, self._store = self._store, None
            if store is not None:
                await run_in_threadpool(store.close)
