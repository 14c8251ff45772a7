"""A store with replicas: what :class:`kvstore.Store` has beside :class:`kvstore.store.Store`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from kvstore import store
from kvstore.arguments import integer_within, printable, shown, url_without_credentials
from kvstore.calls import uninterrupted
from kvstore.checkpoint.health import Health
from kvstore.checkpoint.messages import Task
from kvstore.clock import SystemClock
from kvstore.errors import InvalidRequest, Unavailable
from kvstore.files import Files
from kvstore.meta.state import CatalogState
from kvstore.replica.client import ObjectStore, directory_of, normalised, place_of
from kvstore.replica.follow.follower import LAG_SECONDS, ROLLBACK_LIMIT, Follower, Promoted, begin
from kvstore.replica.image_worker import ElsewhereWorker, chosen, followers
from kvstore.replica.leadership import Lead
from kvstore.replica.read.restore import Restore, Restored
from kvstore.replica.replica import Replica, ReplicaReport
from kvstore.replica.ship.background import Shipping
from kvstore.replica.ship.shipper import edits_pushed, stored_name
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog.edits import AddReplica, DropReplica, decode
from logformat.catalog.following_file import FollowingFile
from logformat.catalog.image import Leader
from logformat.ids import OFFSET_MAX, Txid
from logformat.urls import shown_url

NAME_BYTES_MAX = 255
SECONDS_MAX = 24 * 3600


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a store to write to it, as :func:`kvstore.open` does; for rooms that know nothing of jobs."""
    return Store(store.path_of(path), store.options_of_call("sync", {}))


class Store(store.Store):
    """An open store; a context manager. It may be used from any thread, but not across ``fork()``."""

    def __init__(self, *args: Any, **given: Any) -> None:
        self._shippings: weakref.WeakSet[Shipping] = weakref.WeakSet()
        super().__init__(*args, **given)
        self._core.checkpoints.elsewhere = partial(_worker_elsewhere, self._core)
        if self._core.journal.asks is None:  # one for all stores of a process that are the same directory
            self._core.journal.asks = Lead(self._core.journal, self._core.store_id, self._core.clock).check

    @uninterrupted
    def close(self) -> None:
        """Commit everything and give the store up; see :meth:`kvstore.store.Store.close`."""
        self._closed = True
        for shipping in list(self._shippings):
            shipping.close()
        super().close()

    def add_replica(self, url: str, name: str | None = None) -> Replica:
        """Have a copy of the store elsewhere; nothing is shipped yet.

        Args:
            url: ``file:///dir`` or a directory's path, ``s3://bucket/path``, ``gs://…``, ``az://…``: whatever obstore
                speaks to. Credentials and endpoints come from the environment.
            name: The URL if None.

        Raises:
            InvalidRequest: Nothing can be at such a URL, it has credentials, or there is a replica of that name or at
                that place.
        """
        self._check_registers()
        url_without_credentials("url", url)
        if name is not None:
            url_without_credentials("name", name)
        given = printable("name", name if name is not None else url, NAME_BYTES_MAX)
        url = normalised(url)
        self._check_place(url)
        ObjectStore(url, create=True)

        def decide(state: CatalogState) -> AddReplica:
            if given in state.replicas:
                raise InvalidRequest("There is a replica of that name; choose another, or drop it.", replica=given)
            for other, replica in state.replicas.items():
                if place_of(replica.url) == place_of(url):
                    raise InvalidRequest(
                        "There is a replica at that place; choose another, or drop it.", replica=other, url=url
                    )
            return AddReplica(name=given, url=url)

        self._core.journal.append(decide)
        return self.replica(given)

    def _check_place(self, url: str) -> None:
        if url.startswith("memory:"):
            raise InvalidRequest("What is in memory is no replica: it is gone with the process.", url=url)
        place = directory_of(url)
        if place is not None:
            place, here = place.resolve(), self.path.resolve()
            if place == here or here in place.parents or place in here.parents:
                raise InvalidRequest("A replica is elsewhere than its store; choose another directory.", url=url)

    def replica(self, name: str) -> Replica:
        """A replica of the store.

        Raises:
            InvalidRequest: There is none of that name.
        """
        return Replica(self._core, stored_name(self._core, name), self._check_open)

    @property
    def replicas(self) -> dict[str, ReplicaReport]:
        """How each replica is, by what is known here; see :meth:`Replica.check`."""
        self._check_open()
        return {name: self.replica(name).report() for name in self._replica_names()}

    def health(self) -> Health:
        """How the catalog stands, and what somebody should see to: images, and what replicas lack of it.

        Raises:
            CorruptImage, UnsupportedVersion: The catalog can't be loaded.
        """
        found = super().health()
        return dataclasses.replace(found, warnings=[*found.warnings, *self._replicas_behind()])

    def _replicas_behind(self) -> Iterator[str]:
        now_ms = self._core.clock.now_ms()
        for name, status in sorted(self._core.catalog().replicas.items()):
            shipped, edits = edits_pushed(self._core.journal, status)
            behind = self._core.journal.behind(Txid(shipped)) if shipped < edits else None
            if behind and now_ms - decode(behind[0]).time_ms > 1000 * LAG_SECONDS:
                yield (
                    f"Replica {shown_url(name)} lacks {edits - shipped} edits of the catalog, the first is more than"
                    f" {LAG_SECONDS} s old, and the journal keeps them for it: see whether `kvstore replicate` runs, or"
                    " remove the replica."
                )

    def replicate(self, every: float = 1.0) -> Shipping:
        """Ship to all replicas from now on, in a thread, until what is returned is closed, or the store.

        Writers do not wait for what is shipped. `kvstore replicate` does the same in a process of its own.

        Args:
            every: Seconds from one round to the next.

        Raises:
            InvalidRequest: That is no time.
        """
        self._check_open()
        if not 0 < every <= SECONDS_MAX:
            raise InvalidRequest("every is a number of seconds above 0, up to a day.", every=shown(every))
        shipping = Shipping(lambda: {name: self.replica(name) for name in self._replica_names()}, every)
        self._shippings.add(shipping)
        return shipping.begin()

    def _replica_names(self) -> list[str]:
        self._check_open()
        return sorted(map(shown_url, self._core.catalog().replicas))

    def drop_replica(self, name: str) -> None:
        """Ship to a replica no more; what it has stays.

        Raises:
            InvalidRequest: There is none of that name.
        """
        self._check_registers()
        stored = stored_name(self._core, name)
        self._core.journal.append(lambda _: DropReplica(name=stored))


def _worker_elsewhere(core: store._Core, task: Task) -> ElsewhereWorker | None:
    """Somebody who follows a replica of a store, and can make an image of its catalog."""
    state = core.catalog()
    leader = Leader(epoch=state.leader_epoch, name=state.leader, lost_to=state.lost_to)
    for replica in state.replicas.values():
        with suppress(Unavailable, InvalidRequest):
            client = ObjectStore(replica.url)
            found = chosen(followers(client), core.clock.now_ms())
            if found is not None:
                return ElsewhereWorker(task, client, found.name, leader, core.files)
    return None


def follow(
    url: str,
    path: str | os.PathLike[str],
    *,
    rollback_limit: int = ROLLBACK_LIMIT,
    progress: Callable[[int], None] = lambda _: None,
    **settings: Any,
) -> Follower:
    """Keep a copy of a store current, which any process may read: ``kvstore.open(path, read_only=True)``.

    What the replica has is taken by :meth:`Follower.pull`; the first time here, which makes the copy.

    Args:
        url: Of the replica.
        path: Directory of the copy: one that follows this replica, or a new or empty one.
        rollback_limit: If the replica gets a new leader who lacks no more edits and changes of the copy than these, the
            copy gives them up; if more, it stops.
        progress: Called with the bytes of each object once it is read.
        settings: Fields of :class:`kvstore.options.StoreOptions`. ``journal_sync`` other than ``SYNC`` leaves edits of
            the catalog to the system until the next rows come; a crash has them taken again.

    Raises:
        NotAStore: There is something else in the directory, or no replica.
        StoreLocked: Another process follows with it.
        InvalidRequest: Nothing can be at such a URL, it has credentials, or the copy follows another.
        Unavailable: The replica can't be reached; or nothing can be made of what it has yet (ReplicaBehind).
        MissingVersion, CorruptData: It has a hole, or an object that is bad; have it repaired where its leader is.
        StoreFull, LogFailed: The disk refuses. What is in the directory is no store; do it again.
    """
    place, url = store.path_of(path), normalised(url_without_credentials("url", url))
    options, files, clock = store.options_of_call("sync", settings), Files(), SystemClock()
    rollback_limit = integer_within("rollback_limit", rollback_limit, 0, OFFSET_MAX)
    if not (place / paths.STORE_FILE).exists():
        client = ObjectStore(url)
        name = f"{socket.gethostname()}-{uuid4().hex[:8]}"
        following = FollowingFile(store_id=Source(client).store.store_id, url=url, name=name)
        begin(place, following, client, files, clock, progress)
    found = Follower(place, options, files, clock, rollback_limit=rollback_limit, progress=progress)
    if place_of(found.url) != place_of(url):
        found.close()
        raise InvalidRequest("The copy follows another replica; choose another directory.", path=place, url=found.url)
    return found


def promote(path: str | os.PathLike[str]) -> Promoted:
    """Have a copy that follows take its leader's place: with all that was shipped it is a store like any other then.

    The former leader, if it still runs and reaches the replica, writes nothing any more when this returns: it is told
    (WriterFenced) when it appends or ships next. What it wrote and had not shipped, this one does not have. A leader
    that does not reach the replica goes on: see that it is gone before.

    Args:
        path: Directory of the copy; nobody follows with it meanwhile.

    Raises:
        NotAStore: It is no copy that follows.
        StoreLocked: Another process follows with it; end that.
        WriterFenced: Another copy is about to take the leader's place.
        Unavailable: The replica can't be reached.
        MissingVersion, CorruptData, Diverged: Not all that was shipped can be had. The leader may have been fenced
            already; restore, or have the replica repaired and do it again.
    """
    with Follower(store.path_of(path), store.options_of_call("sync", {}), Files(), SystemClock()) as follower:
        return follower.promote()


def restore(
    url: str,
    path: str | os.PathLike[str],
    to: dt.datetime | Mapping[str, Mapping[int, int]] | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Restored:
    """Make a store of a replica.

    Args:
        url: Of the replica.
        path: A directory that is new or empty.
        to: Everything if None; else a time, or for tables by name the offset of each bucket before which its changes
            are restored: up to the last whole batch, and with no commit over several buckets torn.
        progress: Called with the bytes of each object once it is read.

    Raises:
        NotAStore: There is no replica, or the directory is not empty.
        MissingVersion: A hole of the replica lies before what is to be restored.
        ReplicaBehind: The replica does not reach so far.
        CorruptData: An object is not what it should be; repair the replica.
        InvalidRequest: The replica knows no such table or bucket; or its URL has credentials.
        Unavailable: It can't be reached.
        StoreFull, LogFailed: The disk refuses. What is in the directory is no store.
    """
    url_without_credentials("url", url)
    if isinstance(to, dt.datetime):
        if to.tzinfo is None:
            raise InvalidRequest("A time has a time zone; give one, such as datetime.timezone.utc.", to=to)
    elif to is not None:
        if not isinstance(to, Mapping) or not all(isinstance(each, Mapping) for each in to.values()):
            raise InvalidRequest("Give a time, or offsets by table and bucket: {'t': {0: 17}}.", to=shown(to))
        to = {
            name: {bucket: integer_within("offset", end, 0, OFFSET_MAX) for bucket, end in ends.items()}
            for name, ends in to.items()
        }
    return Restore(ObjectStore(url), Files(), SystemClock(), progress).run(store.path_of(path), to)
