"""Writes the catalog of a new store or copy that is made from a replica."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.meta import image
from kvstore.meta.journal import create_journal
from kvstore.meta.state import CatalogState
from logformat import paths
from logformat.catalog.edits import Edit
from logformat.ids import Epoch


def write_catalog(path: Path, store_id: UUID, state: CatalogState, last: Edit, files: Files, clock: Clock) -> None:
    """Write a catalog: its image, and a journal that begins with its last edit.

    Args:
        path: Directory of the store, in which the directory of the catalog exists.
        last: The last edit of ``state``.

    Raises:
        OSError: The disk is full or failed.
    """
    files.make_directory(path / paths.IMAGES)
    made = image.image_of(state, store_id, epoch=Epoch(1), now_ms=clock.now_ms())
    image.save(paths.image_file(path / paths.IMAGES, state.txid), made, files)
    files.sync_directory(path / paths.IMAGES)
    create_journal(path / paths.JOURNAL, files, last)
