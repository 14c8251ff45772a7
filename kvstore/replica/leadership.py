"""Whether a store still leads: it appends nothing for longer than a lease after another leader took its place.

* A promotion creates an object in a replica, and waits for the end of a lease before it continues.
* A leader appends only if, within a lease, it has asked each of its replicas for that object and for its own. While it
  appends, it asks in the background; after a pause it waits for the answer.
* A replica that can't be reached or does not answer stops no leader: writing does not depend on replicas. Before a copy
  of an isolated leader is promoted, the operator has to stop that leader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID

from kvstore.clock import Clock
from kvstore.errors import CorruptData, InvalidRequest, Unavailable
from kvstore.meta.leadership import LedCatalog
from kvstore.meta.state import CatalogState
from kvstore.replica.client import NO_RETRIES, Client, ObjectStore, content_of
from logformat import paths
from logformat.catalog import store_file
from logformat.ids import Epoch
from logformat.replica.object_file import LEADER_BYTES_MAX, is_claim, is_of, leader_name

LEASE_SECONDS = 2.0
WAIT_SECONDS = 2.0
"""Longest wait for an answer."""
PATIENCE_SECONDS = 30.0
"""After a wait without an answer, the leader does not wait for this replica for so long; it still asks."""


def _connected(url: str) -> Client:
    return ObjectStore(url, retries=NO_RETRIES)


class ReplicaLeadership:
    """Leadership of one store in one process, by what its catalog and its replicas say; from any thread.

    Args:
        connect: Returns a client for a URL.
    """

    def __init__(self, clock: Clock, connect: Callable[[str], Client] = _connected) -> None:
        self._clock = clock
        self._connect = connect
        self._mutex = threading.Lock()
        self._leases: dict[str, _Lease] = {}

    def check(self, catalog: LedCatalog) -> None:
        """Return if the store may be written now; asks the replicas if that was long ago.

        Raises:
            WriterFenced: Another leader has taken this one's place.
            StoreFull, LogFailed: It has, and that can't be recorded.
        """
        state = catalog.state()
        state.check_leads()
        if not state.replicas:
            return
        leases = [self._lease(replica.url, catalog.store_id) for replica in state.replicas.values()]
        for lease in leases:
            lease.renew(state)
        for lease in leases:
            lease.wait(state)
        lost_to = max((lease.lost_to for lease in leases), default=Epoch(0))
        if lost_to and lost_to >= state.leader_epoch:
            catalog.lose_lead(lost_to).check_leads()

    def _lease(self, url: str, store_id: UUID) -> _Lease:
        with self._mutex:
            if url not in self._leases:
                self._leases[url] = _Lease(url, self._connect, store_id, self._clock)
            return self._leases[url]


class _Lease:
    """The lease that one replica gives.

    Attributes:
        lost_to: Epoch of the leader that took this store's place; 0 as long as none is known.
    """

    def __init__(self, url: str, connect: Callable[[str], Client], store_id: UUID, clock: Clock) -> None:
        self._url = url
        self._connect = connect
        self._store_id = store_id
        self._clock = clock
        self._mutex = threading.Lock()
        self._client: Client | None = None
        self._request: threading.Event | None = None
        self._ends = self._waits_from = clock.monotonic()
        self.lost_to = Epoch(0)

    def renew(self, state: CatalogState) -> None:
        """Ask the replica, without waiting, if half of the lease is over."""
        if self._clock.monotonic() >= self._ends - LEASE_SECONDS / 2:
            self._asked(state)

    def wait(self, state: CatalogState) -> None:
        """Wait for an answer if the lease is over."""
        now = self._clock.monotonic()
        deadline = now + WAIT_SECONDS
        while now >= max(self._ends, self._waits_from):
            # A pending request may have been sent too long ago to renew the lease.
            self._asked(state).wait(max(0.0, deadline - now))
            now = self._clock.monotonic()
            if now >= deadline:
                self._waits_from = now + PATIENCE_SECONDS

    def _asked(self, state: CatalogState) -> threading.Event:
        """The event of the pending request, or of a new one; it is set when the answer is there or none will come."""
        with self._mutex:
            if self._request is not None:
                return self._request
            answered, began = threading.Event(), self._clock.monotonic()
            self._request = answered
            try:
                threading.Thread(
                    target=self._ask, args=(answered, state, began), name="kvstore-lead", daemon=True
                ).start()
            except RuntimeError:  # there are too many threads
                self._answered(answered, began)
            return answered

    def _ask(self, answered: threading.Event, state: CatalogState, began: float) -> None:
        try:
            self.lost_to = max(self.lost_to, self._found(state))
        except (Unavailable, InvalidRequest, CorruptData):
            pass  # no answer
        finally:
            with self._mutex:
                self._answered(answered, began)

    def _answered(self, answered: threading.Event, began: float) -> None:
        self._request = None
        self._ends = began + LEASE_SECONDS
        answered.set()

    def _found(self, state: CatalogState) -> Epoch:
        if self._client is None:
            self._client = self._connect(self._url)
        was_shipped_to = any(each.shipped for each in state.replicas.values() if each.url == self._url)
        return replaced_by(self._client, state, self._store_id, was_shipped_to=was_shipped_to)


def replaced_by(client: Client, state: CatalogState, store_id: UUID, *, was_shipped_to: bool) -> Epoch:
    """The epoch of the leader that took this one's place according to a replica; 0 if none did.

    Nothing is created: only a shipment says that this leader leads, because it may be a copy that ships nowhere.

    Args:
        was_shipped_to: Whether this leader, or one that it replaced, has shipped to the replica. If not, another
            leader's object of the same epoch only shows that the replica is not empty.

    Raises:
        Unavailable: The replica can't be reached.
        CorruptData: The leader object or the store file is damaged.
    """
    following, ours = Epoch(state.leader_epoch + 1), leader_name(state.leader_epoch)
    is_followed, content = (
        content_of(client, leader_name(following), LEADER_BYTES_MAX) is not None,
        content_of(client, ours, LEADER_BYTES_MAX),
    )
    if not is_followed and content is not None and is_of(content, state.leader):
        return Epoch(0)
    store = content_of(client, paths.STORE_FILE, store_file.STORE_BYTES_MAX)
    if store is None or store_file.decode(store).store_id != store_id:
        return Epoch(0)
    if content is None or is_of(content, state.leader):
        return following if is_followed else Epoch(0)
    if not content:
        raise CorruptData("The leader object is empty; a disk that lost power may cause this.", object=ours)
    if not was_shipped_to:
        return Epoch(0)
    if is_followed:
        return following
    return Epoch(0) if is_claim(content) else Epoch(max(1, state.leader_epoch))


def wait_for_lease_end() -> None:
    """Wait until every lease that was renewed before has ended and what was appended under it is written."""
    time.sleep(1.5 * LEASE_SECONDS)  # clocks run at slightly different rates, and an append takes some time
