"""Promotes a copy in all replicas of its store: of several concurrent promotions at most one succeeds.

* A promotion chooses an epoch that none of the replicas it reaches has, and creates the leader object of that epoch in
  each of them, in the order of their names. If another promotion has created it, or one of a higher epoch exists, it
  gives up. So two promotions that reach one common replica can't both lead in an epoch.
* Until the promotion succeeds, its leader objects are claims. A claim stops the former leader and keeps other
  promotions from the epoch in that replica, but it does not replace a leader that finds it.
* A promotion that gives up removes its claims. If it dies they stay until it is tried again; others choose a higher
  epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from uuid import UUID

from kvstore.errors import InvalidRequest, Unavailable, WriterFenced
from kvstore.replica.client import Client, store_id_of
from logformat.ids import Epoch
from logformat.replica.object_file import LEADER_BYTES_MAX, claimed_by, is_of, leader_epoch, leader_name
from logformat.urls import shown_url

_TRIES = 3
"""Attempts to create an object that another promotion creates and removes meanwhile."""

Places = Mapping[str, Callable[[], Client]]
"""Replicas by name, each with a function that connects to it."""


class Promotion:
    """One promotion of one copy.

    Args:
        leader: The text that identifies the leader in its BeginEpoch; unique.
        store_id: Id of the store.
        known: The epoch of the leader that the copy follows.

    Attributes:
        epoch: The epoch in which the copy will lead; set by the first :meth:`claim`.
        unreached: Replicas that could not be reached the last time, with the reasons, by name.
        not_shipped_to: Replicas to which no leader of this store has shipped.
    """

    def __init__(self, leader: str, store_id: UUID, known: Epoch) -> None:
        self._leader = leader
        self._store_id = store_id
        self._known = known
        self._clients: dict[str, Client] = {}
        self._claimed: set[str] = set()
        self.epoch = Epoch(0)
        self.unreached: dict[str, str] = {}
        self.not_shipped_to: set[str] = set()

    def win(self, places: Callable[[], Places], catch_up: Callable[[], None]) -> None:
        """Claim every replica that can be reached, until no claim is new; then call :meth:`begin`.

        Args:
            places: Returns all replicas known at the time of the call.
            catch_up: Called each time that claims were created: waits until former leaders know, and takes what they
                shipped.

        Raises:
            WriterFenced: Another promotion or leader has one of them, and this promotion gave up.
        """
        self.claim(places())
        catch_up()
        # Replicas may have been added or become reachable meanwhile, and existing claims must still be there.
        while self.claim(places()):
            catch_up()

    def claim(self, places: Places) -> bool:
        """Claim each replica that can be reached, and check that earlier claims are still there.

        Returns:
            Whether a claim was created: a former leader that only asks that replica may not know yet.

        Raises:
            WriterFenced: Another promotion or leader has one of them, and this promotion gave up.
        """
        self.unreached = {}
        reached = {name: epochs for name in sorted(places) if (epochs := self._leaders(name, places[name])) is not None}
        if not self.epoch:
            self.epoch = self._chosen(reached)
        created = False
        for name in reached:
            with self._reaching(name):
                created |= self._claim_one(name)
        return created

    def look(self, places: Places, epoch: Epoch) -> None:
        """Find the replicas that an earlier, finished promotion did not reach, or that can't be reached now."""
        self.epoch, self.unreached = epoch, {}
        for name in sorted(places):
            epochs = self._leaders(name, places[name])
            if epochs is not None and epoch not in epochs:
                self.unreached[shown_url(name)] = "It could not be reached when the others were claimed."

    def has_claimed(self, name: str) -> bool:
        """Whether a replica is claimed."""
        return name in self._claimed

    def begin(self) -> None:
        """Turn all claims into objects of the leader."""
        for name in sorted(self._claimed):
            with self._reaching(name):
                self._clients[name].replace(leader_name(self.epoch), [self._leader.encode()])

    def give_up(self, name: str) -> WriterFenced:
        """Remove the claims; returns the error to raise.

        Args:
            name: The replica that another promotion or leader has.
        """
        left = [each for each, client in self._clients.items() if not self._is_removed(client)]
        more = {"claims_left_in": [shown_url(each) for each in left]} if left else {}
        return WriterFenced(
            "Another copy is being promoted to leader; follow that one, or promote this one again.",
            replica=name,
            leader_epoch=self.epoch,
            **more,
        )

    def _leaders(self, name: str, connect: Callable[[], Client]) -> dict[Epoch, str] | None:
        """Names of the leader objects in a replica of this store, by epoch; None if it can't be reached."""
        with self._reaching(name):
            client = self._clients.get(name) or connect()
            store = store_id_of(client)
            if store != self._store_id:
                self.not_shipped_to.add(name)
            if store not in (None, self._store_id):
                self.unreached[shown_url(name)] = "It now belongs to another store."
                return None
            leaders = _listed(client)
            self._clients[name] = client
            return leaders
        return None

    def _chosen(self, reached: Mapping[str, Mapping[Epoch, str]]) -> Epoch:
        newest = max((max(epochs, default=Epoch(0)) for epochs in reached.values()), default=Epoch(0))
        if newest <= self._known:
            return Epoch(self._known + 1)
        # An earlier attempt of this promotion, which died, may have claimed the newest epoch; then it is used again.
        for name, epochs in reached.items():
            with self._reaching(name), suppress(FileNotFoundError):
                if newest in epochs and not is_of(
                    bytes(self._clients[name].get(epochs[newest], bytes_max=LEADER_BYTES_MAX)), self._leader
                ):
                    return Epoch(newest + 1)
        return newest

    def _claim_one(self, name: str) -> bool:
        client, ours = self._clients[name], leader_name(self.epoch)
        for _ in range(_TRIES):
            created = client.create(ours, [claimed_by(self._leader)])
            try:
                content = bytes(client.get(ours, bytes_max=LEADER_BYTES_MAX))
            except FileNotFoundError:
                continue  # another promotion has just removed its claim
            leaders = _listed(client)
            if not is_of(content, self._leader) or max(leaders, default=self.epoch) > self.epoch:
                break
            # A leader of an earlier epoch asks only for the epoch after its own.
            for between in range(min(leaders, default=self.epoch), self.epoch):
                if between not in leaders:
                    created |= client.create(leader_name(Epoch(between)), [claimed_by(self._leader)])
            self._claimed.add(name)
            return created
        raise self.give_up(name)

    def _is_removed(self, client: Client) -> bool:
        """Remove claims of the newest epoch only: a claim below another's epoch still stops the leaders before it."""
        try:
            while leaders := _listed(client):
                newest = max(leaders)
                try:
                    content = bytes(client.get(leaders[newest], bytes_max=LEADER_BYTES_MAX))
                except FileNotFoundError:
                    continue
                if newest <= self._known or content != claimed_by(self._leader):
                    return True
                client.delete(leaders[newest])
                if max(_listed(client), default=Epoch(0)) > newest:
                    client.create(leaders[newest], [content])  # one of a higher epoch was created meanwhile
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
    """Names of the leader objects, by epoch."""
    return {epoch: name for name, _ in client.list("leader/") if (epoch := leader_epoch(name)) is not None}
