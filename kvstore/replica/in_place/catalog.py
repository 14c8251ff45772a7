"""The catalog of a replica that is opened in place."""

from __future__ import annotations

from kvstore.clock import Clock
from kvstore.meta.state import CatalogState
from kvstore.replica.client import Client
from kvstore.replica.in_place.followed import REFRESH_SECONDS
from kvstore.replica.source import Source
from logformat.catalog.replicas import CATALOG


class FollowedCatalog:
    """The catalog as it was at most :data:`REFRESH_SECONDS` ago; for one thread at a time.

    Raises:
        NotAStore, MissingVersion, ReplicaBehind, CorruptData, Unavailable: See :class:`kvstore.replica.source.Source`.
    """

    _source: Source
    _state: CatalogState
    _looked: float
    _end: int

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._load()

    def state(self) -> CatalogState:
        """The catalog; raises what the creation of this object raises."""
        if self._clock.monotonic() - self._looked >= REFRESH_SECONDS:
            if self._source.renew([CATALOG]):
                self._take()
            else:
                self._load()
            self._looked = self._clock.monotonic()
        return self._state

    def _load(self) -> None:
        self._looked = self._clock.monotonic()
        source = Source(self._client, only_catalog=True)
        _, state, edits = source.recent_catalog()
        for edit in edits:
            state = state.after(edit)
        self._source, self._state, self._end = source, state, source.shipped(CATALOG).end
        source.release()

    def _take(self) -> None:
        end, state = self._source.shipped(CATALOG).end, self._state
        for edit in self._source.edits(self._source.path_from(CATALOG, self._end, end)):
            state = state.after(edit)
        self._state, self._end = state, end
        self._source.forget(CATALOG, end)
        self._source.release()
