"""The checks that a table asks of its open store."""

from __future__ import annotations

from typing import Protocol


class Access(Protocol):
    """Whether an open store takes a call now: a :class:`kvstore.store.session.Session`."""

    def check_open(self) -> None:
        """Refuse if the store is closed."""

    def check_writable(self) -> None:
        """Refuse if the store may not be written."""

    def check_registers(self) -> None:
        """Refuse if readers may not be registered."""
