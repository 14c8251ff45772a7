"""Whether a store still leads: nothing is appended longer than a lease after somebody has taken its place.

* Who takes the place creates an object in a replica, and lets a lease pass before it goes on.
* A leader appends nothing unless it has asked each of its replicas for that object, and for its own, within a lease.
  While it appends it asks beside that; after a rest it waits for the answer.
* A place that can't be reached, or says nothing for a while, stops nobody: to write does not depend on replicas. Who
  promotes a copy of a leader that is cut off has to see to it that it is gone.
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
from kvstore.replica.client import NO_RETRIES, Client, ObjectStore
from logformat import paths
from logformat.catalog import store_file
from logformat.ids import Epoch
from logformat.replica.object_file import LEADER_BYTES_MAX, is_claim, is_of, leader_name

LEASE_SECONDS = 2.0
WAIT_SECONDS = 2.0
"""For an answer, at most."""
PATIENCE_SECONDS = 30.0
"""A place that was waited for in vain is not waited for again so soon; it is asked all the same."""


def _connected(url: str) -> Client:
    return ObjectStore(url, retries=NO_RETRIES)


class ReplicaLeadership:
    """Leadership of one store in one process, by what its catalog and its replicas say; from any thread.

    Args:
        connect: The place at a URL.
    """

    def __init__(self, clock: Clock, connect: Callable[[str], Client] = _connected) -> None:
        self._clock = clock
        self._connect = connect
        self._mutex = threading.Lock()
        self._places: dict[str, _Place] = {}

    def check(self, catalog: LedCatalog) -> None:
        """Return if the store may be written now; asks the replicas if that was long ago.

        Raises:
            WriterFenced: Another leader has taken this one's place.
            StoreFull, LogFailed: It has, and that can't be recorded.
        """
        state = catalog.state()
        state.check_leads()
        places = [self._place(replica.url, catalog.store_id) for replica in state.replicas.values()]
        for place in places:
            place.renew(state)
        for place in places:
            place.wait(state)
        lost_to = max((place.lost_to for place in places), default=Epoch(0))
        if lost_to and lost_to >= state.leader_epoch:
            catalog.lose_lead(lost_to).check_leads()

    def _place(self, url: str, store_id: UUID) -> _Place:
        with self._mutex:
            if url not in self._places:
                self._places[url] = _Place(url, self._connect, store_id, self._clock)
            return self._places[url]


class _Place:
    """Where a replica is.

    Attributes:
        lost_to: The epoch of the leader that took this store's place, once that is known.
    """

    def __init__(self, url: str, connect: Callable[[str], Client], store_id: UUID, clock: Clock) -> None:
        self._url = url
        self._connect = connect
        self._store_id = store_id
        self._clock = clock
        self._mutex = threading.Lock()
        self._client: Client | None = None
        self._under_way: threading.Event | None = None
        self._ends = self._waits_from = clock.monotonic()
        self.lost_to = Epoch(0)

    def renew(self, state: CatalogState) -> None:
        """Ask, without waiting, if half of the lease is over."""
        if self._clock.monotonic() >= self._ends - LEASE_SECONDS / 2:
            self._asked(state)

    def wait(self, state: CatalogState) -> None:
        """Wait for an answer if the lease is over."""
        now = self._clock.monotonic()
        deadline = now + WAIT_SECONDS
        while now >= max(self._ends, self._waits_from):
            # What is under way may have been asked too long ago to be an answer.
            self._asked(state).wait(max(0.0, deadline - now))
            now = self._clock.monotonic()
            if now >= deadline:
                self._waits_from = now + PATIENCE_SECONDS

    def _asked(self, state: CatalogState) -> threading.Event:
        """Set once there is an answer, or there will be none, to what was asked before, or is now."""
        with self._mutex:
            if self._under_way is not None:
                return self._under_way
            answered, began = threading.Event(), self._clock.monotonic()
            self._under_way = answered
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
        self._under_way = None
        self._ends = began + LEASE_SECONDS
        answered.set()

    def _found(self, state: CatalogState) -> Epoch:
        if self._client is None:
            self._client = self._connect(self._url)
        was_shipped_to = any(each.shipped for each in state.replicas.values() if each.url == self._url)
        return replaced_by(self._client, state, self._store_id, was_shipped_to=was_shipped_to)


def replaced_by(client: Client, state: CatalogState, store_id: UUID, *, was_shipped_to: bool) -> Epoch:
    """The epoch of the leader that has taken this one's place, by what a replica says; 0 if none has.

    If the replica has lost what says that this one leads, it is put there again.

    Args:
        was_shipped_to: Whether this leader, or one it replaced, has shipped there; else a leader object of its epoch
            that is another's only says that the place is not empty.

    Raises:
        Unavailable: The replica can't be reached.
        CorruptData: What says who leads, or which store it is, is damaged.
    """
    following, ours = Epoch(state.leader_epoch + 1), leader_name(state.leader_epoch)
    is_followed, said = (
        _said(client, leader_name(following), LEADER_BYTES_MAX) is not None,
        _said(client, ours, LEADER_BYTES_MAX),
    )
    if not is_followed and said is not None and is_of(said, state.leader):
        return Epoch(0)
    whose = _said(client, paths.STORE_FILE, store_file.STORE_BYTES_MAX)
    if whose is None or store_file.decode(whose).store_id != store_id:
        return Epoch(0)
    if said is None and not is_followed and was_shipped_to:
        client.create(ours, [state.leader.encode()])
        said = _said(client, ours, LEADER_BYTES_MAX)
    if said is None or is_of(said, state.leader):
        return following if is_followed else Epoch(0)
    if not said:
        raise CorruptData("What says who leads is empty, as a disk may leave it that lost power.", object=ours)
    if not was_shipped_to:
        return Epoch(0)
    if is_followed:
        return following
    return Epoch(0) if is_claim(said) else Epoch(max(1, state.leader_epoch))


def _said(client: Client, name: str, bytes_max: int) -> bytes | None:
    try:
        return bytes(client.get(name, bytes_max=bytes_max))
    except FileNotFoundError:
        return None


def let_pass() -> None:
    """Wait until no leader appends that has not asked since."""
    time.sleep(1.5 * LEASE_SECONDS)  # clocks do not run at quite the same rate, and what was asked for is to be written
