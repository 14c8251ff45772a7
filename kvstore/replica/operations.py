"""Copies of a store: follow a replica, promote a copy, restore a store from a replica."""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from kvstore.arguments import integer_within, path_of, shown, url_without_credentials
from kvstore.clock import SystemClock
from kvstore.disk.files import Files, resolved
from kvstore.errors import InvalidRequest, MissingVersion, NotAStore
from kvstore.options import options_of_call
from kvstore.replica.client import ObjectStore, directory_of, normalised, place_of
from kvstore.replica.follow.creation import create
from kvstore.replica.follow.follower import ROLLBACK_LIMIT, Follower, Promoted
from kvstore.replica.follow.replacement import complete
from kvstore.replica.location import is_store
from kvstore.replica.read.restore import Restore, Restored
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog.following_file import FollowingFile
from logformat.ids import OFFSET_MAX
from logformat.urls import shown_url


def follow(
    url: str,
    path: str | os.PathLike[str],
    *,
    rollback_limit: int = ROLLBACK_LIMIT,
    progress: Callable[[int], None] = lambda _: None,
    **settings: Any,
) -> Follower:
    """Keep a copy of a store current. Any process may read the copy: ``kvstore.open(path, read_only=True)``.

    The first call for a directory creates the copy. Afterwards :meth:`Follower.pull` takes what is new in the replica.

    Args:
        url: URL of the replica.
        path: Directory of the copy: one that follows this replica, or a new or empty one.
        rollback_limit: If a new leader of the replica lacks at most this number of the copy's edits and changes, the
            copy rolls them back; if it lacks more, the follower stops.
        progress: Called with the bytes of each object after it is read.
        settings: Fields of :class:`kvstore.options.StoreOptions`. With a ``journal_sync`` other than ``SYNC``, edits of
            the catalog are not synced until the next rows come; after a crash they are taken from the replica again.

    Raises:
        NotAStore: The directory has something else, or there is no replica.
        StoreLocked: Another process follows with this directory.
        InvalidRequest: The URL is not valid or has credentials, or the copy follows another replica.
        Unavailable: The replica can't be reached, or does not have what a copy needs yet (ReplicaBehind).
        MissingVersion, CorruptData: The replica has a hole or a damaged object; repair it on its leader.
        StoreFull, LogFailed: The disk is full or failed. The directory is not a store; call this again.
    """
    directory, url = path_of(path), normalised(url_without_credentials("url", url))
    options, files, clock = options_of_call("sync", settings), Files(), SystemClock()
    rollback_limit = integer_within("rollback_limit", rollback_limit, 0, OFFSET_MAX)
    complete(resolved(directory), files)
    if not (directory / paths.STORE_FILE).exists():
        client = _objects_of(url)
        name = f"{socket.gethostname()}-{uuid4().hex[:8]}"
        with _named(url):
            following = FollowingFile(store_id=Source(client).store.store_id, url=url, name=name)
        create(directory, following, client, files, clock, progress)
    follower = Follower(directory, options, files, clock, rollback_limit=rollback_limit, progress=progress)
    if place_of(follower.url) != place_of(url):
        follower.close()
        raise InvalidRequest(
            "The copy follows another replica; choose another directory.", path=directory, url=follower.url
        )
    return follower


def promote(path: str | os.PathLike[str]) -> Promoted:
    """Promote a copy to leader: it takes everything that was shipped, and becomes an ordinary store.

    When this returns, the former leader can't write any more if it reaches the replica: its next append or shipment
    raises WriterFenced. The new leader lacks what the former one had not shipped. A leader that does not reach the
    replica continues to write, so stop it first.

    Args:
        path: Directory of the copy; no process may follow with it.

    Raises:
        NotAStore: The directory is not a copy that follows a replica.
        StoreLocked: Another process follows with it; stop that process.
        WriterFenced: Another copy is being promoted.
        Unavailable: The replica can't be reached.
        MissingVersion, CorruptData, Diverged: Some of what was shipped can't be taken. The leader may be fenced;
            restore, or repair the replica and call this again.
    """
    with Follower(path_of(path), options_of_call("sync", {}), Files(), SystemClock()) as follower:
        return follower.promote()


def restore(
    url: str,
    path: str | os.PathLike[str],
    to: dt.datetime | Mapping[str, Mapping[int, int]] | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Restored:
    """Restore a store from a replica.

    Args:
        url: URL of the replica.
        path: A directory that is new or empty.
        to: None for the latest state; a time; or by table name, for each bucket the offset before which its changes are
            restored. A restore ends between batches, and a commit over several buckets is restored in all or none.
        progress: Called with the bytes of each object after it is read.

    Raises:
        NotAStore: There is no replica, or the directory is not empty.
        MissingVersion: The replica has a hole before the target.
        ReplicaBehind: The replica ends before the target, or starts after it.
        CorruptData: An object is damaged; repair the replica.
        InvalidRequest: The replica has no such table or bucket, or the URL has credentials.
        Unavailable: The replica can't be reached.
        StoreFull, LogFailed: The disk is full or failed. The directory is not a store.
    """
    url_without_credentials("url", url)
    if isinstance(to, dt.datetime):
        if to.tzinfo is None:
            raise InvalidRequest("The time has no time zone; give one, such as datetime.timezone.utc.", to=to)
    elif to is not None:
        if not isinstance(to, Mapping) or not all(isinstance(each, Mapping) for each in to.values()):
            raise InvalidRequest("Give a time, or offsets by table and bucket: {'t': {0: 17}}.", to=shown(to))
        to = {
            name: {bucket: integer_within("offset", end, 0, OFFSET_MAX) for bucket, end in ends.items()}
            for name, ends in to.items()
        }
    client = _objects_of(url)
    with _named(url):
        found = Restore(client, Files(), SystemClock(), progress)
    return found.run(path_of(path), to)


def _objects_of(url: str) -> ObjectStore:
    """The objects of a replica.

    Raises:
        NotAStore: There is a store.
    """
    directory = directory_of(normalised(url))
    if directory is not None and is_store(directory):
        raise NotAStore("This is a store, no replica; give the place to which the store ships.", path=directory)
    return ObjectStore(url)


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Have the error for a place without a replica say which it is."""
    try:
        yield
    except (NotAStore, MissingVersion) as error:
        error.where["url"] = shown_url(url)
        raise
