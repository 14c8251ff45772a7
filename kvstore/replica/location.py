"""Tells a replica from a store by where it is."""

from __future__ import annotations

from pathlib import Path

from kvstore.replica.client import normalised
from logformat import paths
from logformat.replica import manifest as replica_manifest


def replica_at(path: str) -> str | None:
    """URL of the replica at a URL or a directory; None if the path is a directory without one."""
    if "://" in path:
        return path
    directory = Path(path).expanduser()
    is_replica = (directory / replica_manifest.NAME).exists() or (directory / "leader").exists()
    return normalised(path) if is_replica and not is_store(directory) else None


def is_store(directory: Path) -> bool:
    """Whether a directory has a store, or a copy that follows a replica."""
    return (directory / paths.JOURNAL.parts[0]).exists()
