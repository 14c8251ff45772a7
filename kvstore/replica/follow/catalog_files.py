"""Writes the catalog of a new store or copy that is made from a replica, or of a backup."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID, uuid4

from kvstore.clock import Clock
from kvstore.disk.files import Files
from kvstore.meta import image
from kvstore.meta.consumers import moved_back
from kvstore.meta.journal import create_journal
from kvstore.meta.state import CatalogState
from logformat import paths
from logformat.catalog.edits import BeginEpoch, DropReplica, Edit, EndCommit, Payload
from logformat.catalog.replicas import Stream
from logformat.ids import BucketId, Epoch, Txid


def write_copied_catalog(
    path: Path, store_id: UUID, state: CatalogState, ends: Mapping[Stream, int], files: Files, clock: Clock
) -> None:
    """Write the catalog of a store that is a copy of another, with a leader of its own and without replicas.

    Args:
        path: Directory of the new store.
        state: The catalog of the other store.
        ends: Of each bucket, the offset before which the copy has all changes; consumers are moved back to there.

    Raises:
        OSError: The disk is full or failed.
    """

    def edit(payload: Payload, epoch: Epoch) -> Edit:
        return Edit(txid=Txid(state.txid + 1), epoch=epoch, time_ms=clock.now_ms(), payload=payload)

    payloads: list[Payload] = [DropReplica(name=name) for name in state.replicas]
    for id, writers in state.writers.items():
        payloads += [EndCommit(table_id=id, commit_id=commit.commit_id) for commit in writers.commits]
    for id, consumers in state.consumers.items():
        buckets = range(state.tables[id].buckets)
        payloads += moved_back(id, consumers, {bucket: ends[Stream(id, BucketId(bucket))] for bucket in buckets})
    for payload in payloads:
        state = state.after(edit(payload, state.leader_epoch))
    begin = edit(BeginEpoch(leader=uuid4().hex), Epoch(state.leader_epoch + 1))
    files.make_directory(path / paths.JOURNAL.parts[0])
    write_catalog(path, store_id, state.after(begin), begin, files, clock)


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
