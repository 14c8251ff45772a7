"""Replicas of a store, as its catalog has them: registered, removed, and what they lack."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

from kvstore.arguments import printable, shown, url_without_credentials
from kvstore.disk.files import resolved
from kvstore.errors import InvalidRequest
from kvstore.meta.state import CatalogState
from kvstore.replica.client import ObjectStore, directory_of, normalised, place_of
from kvstore.replica.follow.follower import LAG_SECONDS
from kvstore.replica.ship.shipper import edits_pushed, stored_name
from kvstore.store.runtime import StoreRuntime
from logformat.catalog.edits import AddReplica, DropReplica, decode
from logformat.ids import Txid
from logformat.replica import retention as retention_object
from logformat.replica.retention import Retention
from logformat.urls import shown_url

NAME_BYTES_MAX = 255


def register(runtime: StoreRuntime, url: str, name: str | None, retention: dt.timedelta | None) -> str:
    """Have a copy of the store elsewhere; see :meth:`kvstore.Store.add_replica`. Returns its name."""
    url_without_credentials("url", url)
    if name is not None:
        url_without_credentials("name", name)
    given = printable("name", name if name is not None else url, NAME_BYTES_MAX)
    url = normalised(url)
    _check_location(runtime.path, url)
    if retention is not None and not (isinstance(retention, dt.timedelta) and retention >= dt.timedelta(0)):
        raise InvalidRequest("retention is a datetime.timedelta of 0 or more.", given=shown(retention))
    client = ObjectStore(url, create=True)

    def decide(state: CatalogState) -> AddReplica:
        if given in state.replicas:
            raise InvalidRequest("There is a replica of that name; choose another, or drop it.", replica=given)
        for other, replica in state.replicas.items():
            if place_of(replica.url) == place_of(url):
                raise InvalidRequest(
                    "There is a replica at that place; choose another, or drop it.", replica=other, url=url
                )
        return AddReplica(name=given, url=url)

    decide(runtime.catalog())
    if retention is not None:
        kept = Retention(retention_ms=retention // dt.timedelta(milliseconds=1))
        client.replace(retention_object.NAME, [retention_object.encode(kept)])
    runtime.journal.append(decide)
    return given


def _check_location(store: Path, url: str) -> None:
    if url.startswith("memory:"):
        raise InvalidRequest(
            "Memory can't hold a replica, because it is lost with the process; choose another URL.", url=url
        )
    directory = directory_of(url)
    if directory is not None:
        directory, here = resolved(directory), resolved(store)
        if directory == here or here in directory.parents or directory in here.parents:
            raise InvalidRequest(
                "A replica can't be in its store's directory or above it; choose another directory.", url=url
            )
        if directory.exists() and not directory.is_dir():
            raise InvalidRequest("This is a file; a replica is a directory. Choose another place.", url=url)


def unregister(runtime: StoreRuntime, name: str) -> None:
    """Ship to a replica no more; see :meth:`kvstore.Store.drop_replica`."""
    stored = stored_name(runtime, name)
    runtime.journal.append(lambda _: DropReplica(name=stored))


def names(runtime: StoreRuntime) -> list[str]:
    """Names of all replicas, sorted, without credentials."""
    return sorted(map(shown_url, runtime.catalog().replicas))


def lags(runtime: StoreRuntime) -> dict[str, int]:
    """Number of edits of the catalog that each replica lacks."""
    lag_of = {}
    for name, status in sorted(runtime.catalog().replicas.items()):
        shipped, edits = edits_pushed(runtime.journal, status)
        lag_of[shown_url(name)] = edits - shipped
    return lag_of


def lag_warnings(runtime: StoreRuntime) -> Iterator[str]:
    """A sentence for each replica that has lacked edits of the catalog for long."""
    now_ms = runtime.clock.now_ms()
    for name, status in sorted(runtime.catalog().replicas.items()):
        shipped, edits = edits_pushed(runtime.journal, status)
        lacking = runtime.journal.edits_after(Txid(shipped)) if shipped < edits else None
        if lacking and now_ms - decode(lacking[0]).time_ms > 1000 * LAG_SECONDS:
            yield (
                f"Replica {shown_url(name)} lacks {edits - shipped} edits of the catalog, the first is more than"
                f" {LAG_SECONDS} s old, and the journal keeps them for it: see whether `kvstore replicate` runs, or"
                " remove the replica."
            )
