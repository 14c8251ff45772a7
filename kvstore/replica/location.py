"""Tells a store from what is read by a URL: a replica, or shared tables."""

from __future__ import annotations

import os
from pathlib import Path

from kvstore.replica.client import normalised
from logformat import paths
from logformat.replica import manifest as replica_manifest, shared_table


def replica_at(path: str) -> str | None:
    """URL of the replica, or of the shared tables, at a URL or a directory; None if a directory has neither."""
    if "://" in path:
        return path
    # A path that can not be looked at is none: opening it says why.
    directory = os.path.expanduser(path)
    names = (replica_manifest.NAME, "leader", shared_table.DEFINITIONS_PREFIX)
    is_replica = any(os.path.exists(os.path.join(directory, name)) for name in names)
    return normalised(path) if is_replica and not is_store(Path(directory)) else None


def is_store(directory: Path) -> bool:
    """Whether a directory has a store, or a copy that follows a replica."""
    return (directory / paths.JOURNAL.parts[0]).exists()
