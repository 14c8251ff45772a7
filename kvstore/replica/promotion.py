"""Taking a leader's place in all its replicas: at most one of those that try at once comes through.

* A promotion takes an epoch that none of the replicas it reaches has, and creates the leader object of that epoch in
  each of them, in the order of their names. If another has the object, or there is one of a higher epoch, it gives up:
  two that reach one replica in common can't both lead in an epoch, and the one that comes furthest leads.
* Until it is the leader its objects say that they are a claim. A claim stops the former leader, and lets nobody else
  have the epoch there, but a leader that comes upon one is not replaced by it.
* One that gives up removes its claims. One that dies leaves them until it is tried again; others take a higher epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from uuid import UUID

from kvstore.errors import CorruptData, InvalidRequest, Unavailable, WriterFenced
from kvstore.replica.client import Client
from logformat import paths
from logformat.catalog import store_file
from logformat.ids import Epoch
from logformat.replica.object_file import LEADER_BYTES_MAX, claimed_by, is_of, leader_epoch, leader_name
from logformat.urls import shown_url

_TRIES = 3
"""To create an object that another promotion creates and removes meanwhile."""

Places = Mapping[str, Callable[[], Client]]
"""Replicas by name, and how each is connected to."""


class Promotion:
    """One promotion of one copy.

    Args:
        leader: What its BeginEpoch will say; no other says so.
        store_id: Of the store.
        known: The epoch of the leader that the copy follows.

    Attributes:
        epoch: In which it is going to lead; set by the first :meth:`take`.
        unreached: Why a replica could not be reached the last time, by its name.
        not_shipped_to: Replicas to which no leader of this store has shipped.
    """

    def __init__(self, leader: str, store_id: UUID, known: Epoch) -> None:
        self._leader = leader
        self._store_id = store_id
        self._known = known
        self._clients: dict[str, Client] = {}
        self._taken: set[str] = set()
        self.epoch = Epoch(0)
        self.unreached: dict[str, str] = {}
        self.not_shipped_to: set[str] = set()

    def win(self, places: Callable[[], Places], catch_up: Callable[[], None]) -> None:
        """Take the place in every replica that can be reached, until nothing of it is new; then call :meth:`begin`.

        Args:
            places: All replicas that are known by now.
            catch_up: Called after each time that an object was created: waits until former leaders know, and takes what
                they shipped.

        Raises:
            WriterFenced: Another has the place in one of them, and this promotion gave up.
        """
        self.take(places())
        catch_up()
        # Replicas that were added or came back meanwhile, too; and where it is held already, it still is.
        while self.take(places()):
            catch_up()

    def take(self, places: Places) -> bool:
        """Take the place in each replica that can be reached, and see that it is still held in those that were taken.

        Returns:
            Whether an object was created: a former leader that only looks there may not know yet.

        Raises:
            WriterFenced: Another has the place in one of them, and this promotion gave up.
        """
        self.unreached = {}
        reached = {name: found for name in sorted(places) if (found := self._leaders(name, places[name])) is not None}
        if not self.epoch:
            self.epoch = self._chosen(reached)
        created = False
        for name in reached:
            with self._reaching(name):
                created |= self._take_one(name)
        return created

    def look(self, places: Places, epoch: Epoch) -> None:
        """See which replicas can't be reached, or were not when the place was taken: for a promotion that is over."""
        self.epoch, self.unreached = epoch, {}
        for name in sorted(places):
            found = self._leaders(name, places[name])
            if found is not None and epoch not in found:
                self.unreached[shown_url(name)] = "It could not be reached when the others were."

    def has(self, name: str) -> bool:
        """Whether the place is taken in a replica."""
        return name in self._taken

    def begin(self) -> None:
        """Say in all replicas that were taken that this is the leader now, and no claim any more."""
        for name in sorted(self._taken):
            with self._reaching(name):
                self._clients[name].replace(leader_name(self.epoch), [self._leader.encode()])

    def give_up(self, name: str) -> WriterFenced:
        """Remove the claims; the error to raise, which names the replica where another has the place."""
        left = [each for each, client in self._clients.items() if not self._is_removed(client)]
        more = {"claims_left_in": [shown_url(each) for each in left]} if left else {}
        return WriterFenced(
            "Another copy takes the leader's place just now; follow that, or promote this one again.",
            replica=name,
            leader_epoch=self.epoch,
            **more,
        )

    def _leaders(self, name: str, connect: Callable[[], Client]) -> dict[Epoch, str] | None:
        """What says in a replica of this store who leads, by epoch; None if it can't be reached."""
        with self._reaching(name):
            client = self._clients.get(name) or connect()
            store = self._store_of(client)
            if store != self._store_id:
                self.not_shipped_to.add(name)
            if store not in (None, self._store_id):
                self.unreached[shown_url(name)] = "It is of another store by now."
                return None
            found = _listed(client)
            self._clients[name] = client
            return found
        return None

    def _store_of(self, client: Client) -> UUID | None:
        """The store a replica is of; None if nothing was shipped there yet, or what says so is damaged."""
        try:
            return store_file.decode(bytes(client.get(paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX))).store_id
        except (FileNotFoundError, CorruptData):
            return None

    def _chosen(self, reached: Mapping[str, Mapping[Epoch, str]]) -> Epoch:
        newest = max((max(found, default=Epoch(0)) for found in reached.values()), default=Epoch(0))
        if newest <= self._known:
            return Epoch(self._known + 1)
        # Of an earlier try that died, unless another has it somewhere; one's own that is not the newest is over.
        for name, found in reached.items():
            with self._reaching(name), suppress(FileNotFoundError):
                if newest in found and not is_of(
                    bytes(self._clients[name].get(found[newest], bytes_max=LEADER_BYTES_MAX)), self._leader
                ):
                    return Epoch(newest + 1)
        return newest

    def _take_one(self, name: str) -> bool:
        client, ours = self._clients[name], leader_name(self.epoch)
        for _ in range(_TRIES):
            created = client.create(ours, [claimed_by(self._leader)])
            try:
                said = bytes(client.get(ours, bytes_max=LEADER_BYTES_MAX))
            except FileNotFoundError:
                continue  # another has just removed its own
            leaders = _listed(client)
            if not is_of(said, self._leader) or max(leaders, default=self.epoch) > self.epoch:
                break
            # A leader of an epoch before asks for the one after its own only.
            for between in range(min(leaders, default=self.epoch), self.epoch):
                if between not in leaders:
                    created |= client.create(leader_name(Epoch(between)), [claimed_by(self._leader)])
            self._taken.add(name)
            return created
        raise self.give_up(name)

    def _is_removed(self, client: Client) -> bool:
        """Remove the claims that nothing is based on: those of epochs below another's stop the leaders before."""
        try:
            while leaders := _listed(client):
                newest = max(leaders)
                try:
                    said = bytes(client.get(leaders[newest], bytes_max=LEADER_BYTES_MAX))
                except FileNotFoundError:
                    continue
                if newest <= self._known or said != claimed_by(self._leader):
                    return True
                client.delete(leaders[newest])
                if max(_listed(client), default=Epoch(0)) > newest:
                    client.create(leaders[newest], [said])  # one of a higher epoch came meanwhile
        except Unavailable:
            return False
        return True

    @contextmanager
    def _reaching(self, name: str) -> Iterator[None]:
        try:
            yield
        except (Unavailable, InvalidRequest) as error:
            self.unreached[shown_url(name)] = str(error)


def _listed(client: Client) -> dict[Epoch, str]:
    """Objects that say who leads, by epoch."""
    return {epoch: name for name, _ in client.list("leader/") if (epoch := leader_epoch(name)) is not None}
