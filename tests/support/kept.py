"""One store for all examples of a test: to open one for each takes longer than most examples do."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import kvstore
from kvstore.errors import NoSuchTable


class KeptStore:
    """A store that is kept open, with one table, "t".

    Args:
        path: Of the new store.
        options: How it is opened.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        self._path = path
        self._options = options
        self.store = kvstore.open(path, **options)

    def empty(self) -> kvstore.Store:
        """The store without the table of the example before."""
        with suppress(NoSuchTable):
            self.store.drop_table("t")
        return self.store

    def reopened(self) -> kvstore.Store:
        """The store, closed and opened again."""
        self.store.close()
        self.store = kvstore.open(self._path, **self._options)
        return self.store
