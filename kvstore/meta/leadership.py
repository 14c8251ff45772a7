"""Whether this process may still write to a store: another leader may have taken its place.

Everything that opens a store for writing is given a :class:`Leadership`, and asks it before it writes. What the catalog
alone knows is in :class:`CatalogLeadership`; ``kvstore/replica/leadership.py`` also asks the replicas.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from kvstore.meta.state import CatalogState
from logformat.ids import Epoch


class LedCatalog(Protocol):
    """A catalog whose leader may lose its place: a :class:`kvstore.meta.journal.Journal`."""

    @property
    def store_id(self) -> UUID:
        """Id of the store."""

    def state(self) -> CatalogState:
        """The catalog as of now."""

    def lose_lead(self, by: Epoch) -> CatalogState:
        """Record that another leader has taken this one's place, for all processes and for good."""


class Leadership(Protocol):
    """Knows whether a store still leads; from any thread."""

    def check(self, catalog: LedCatalog) -> None:
        """Return if the store may be written now.

        Raises:
            WriterFenced: Another leader has taken this one's place. Nothing may be written any more.
        """


class CatalogLeadership:
    """Leadership by what the catalog says, for programs that ask no replica: tools, and copies that follow a leader."""

    def check(self, catalog: LedCatalog) -> None:
        """See :meth:`Leadership.check`."""
        catalog.state().check_leads()
