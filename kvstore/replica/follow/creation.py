"""Creates a copy of a store from a replica."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvstore.calls import uninterrupted
from kvstore.clock import Clock
from kvstore.errors import NotAStore, ReplicaBehind
from kvstore.files import Files, refusals
from kvstore.replica.client import Client
from kvstore.replica.follow.copy import create_copy
from kvstore.replica.follow.round import Planner, Round
from kvstore.replica.read.restore import make_room
from kvstore.replica.source import Source
from logformat import paths
from logformat.catalog.following_file import FollowingFile


@uninterrupted
def create(
    path: Path,
    following: FollowingFile,
    client: Client,
    files: Files,
    clock: Clock,
    progress: Callable[[int], None] = lambda _: None,
) -> Round:
    """Create a copy in a directory that is new or empty, or has what an earlier attempt left.

    Raises:
        NotAStore: The directory has something else, or there is no replica of this store.
        ReplicaBehind, MissingVersion, CorruptData: The replica does not have what a copy needs.
        Unavailable: The replica can't be reached.
        StoreFull, LogFailed: The disk is full or failed.
    """
    source = Source(client, progress)
    check_store(source, following, path)
    _, base, edits = source.catalog()
    planned = Planner(source, lambda _: None).plan(base, edits)
    if not planned.edits:
        raise ReplicaBehind("The replica has no edit after its image of the catalog yet; try again.")
    with refusals(path):
        _remove_unfinished(path, files)
        make_room(path, files)
        create_copy(path, following, planned, source, files, clock)
    return planned


def check_store(source: Source, following: FollowingFile, path: Path) -> None:
    """Check that a replica belongs to the store that a copy follows.

    Raises:
        NotAStore: It belongs to another store.
    """
    if source.store.store_id != following.store_id:
        raise NotAStore("The replica now belongs to another store.", path=path, of=source.store.store_id)


def _remove_unfinished(path: Path, files: Files) -> None:
    """Remove a copy whose creation did not finish, if the directory has one; the file that shows it goes last."""
    meta = path / paths.FOLLOWING.parent
    if (path / paths.STORE_FILE).exists() or not meta.is_dir():
        return
    first = {paths.FOLLOWING.name + paths.TEMPORARY}
    has_begun = [each.name for each in path.iterdir()] == [meta.name] and {
        each.name for each in meta.iterdir()
    } <= first
    if not has_begun and not (path / paths.FOLLOWING).exists():
        return
    for other in [*path.iterdir(), *meta.iterdir()]:
        if other not in (meta, path / paths.FOLLOWING):
            files.remove_tree(other) if other.is_dir() else files.remove(other)
    files.remove_tree(meta)
