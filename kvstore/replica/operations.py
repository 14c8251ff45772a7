"""Copies of a store: follow a replica, promote a copy, restore a store from a replica."""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from kvstore.arguments import integer_within, path_of, shown, url_without_credentials
from kvstore.clock import SystemClock
from kvstore.errors import InvalidRequest
from kvstore.files import Files
from kvstore.options import options_of_call
from kvstore.replica.client import ObjectStore, normalised, place_of
from kvstore.replica.follow.follower import ROLLBACK_LIMIT, Follower, Promoted, begin
from kvstore.replica.read.restore import Restore, Restored
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog.following_file import FollowingFile
from logformat.ids import OFFSET_MAX


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
    place, url = path_of(path), normalised(url_without_credentials("url", url))
    options, files, clock = options_of_call("sync", settings), Files(), SystemClock()
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
    with Follower(path_of(path), options_of_call("sync", {}), Files(), SystemClock()) as follower:
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
    return Restore(ObjectStore(url), Files(), SystemClock(), progress).run(path_of(path), to)
