"""What can still be had of a catalog whose images or journal are damaged. Nothing is written.

* Nothing is believed without its checksum; what is missing is left out, and said.
* What a newer version wrote is not left out: that would lose tables which an upgrade brings back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from kvstore import pages
from kvstore.environment import LMDB_FILES
from kvstore.errors import CorruptData, CorruptImage
from kvstore.files import Files
from kvstore.meta import image
from kvstore.meta.browse import browse
from kvstore.meta.state import CatalogState
from logformat import paths
from logformat.catalog import edits
from logformat.catalog.edits import Edit, Payload
from logformat.ids import Epoch, Txid


@dataclass
class Salvaged:
    """What is left of a catalog.

    Attributes:
        state: The newest image that is right, and all edits behind it that are there.
        image: Txid of this image; None if there is none.
        last: The highest txid anything has.
        knows_last: Whether there can have been none behind it.
        leader_epoch: The highest epoch anything has.
        damaged: What is wrong, a sentence each; it need not mean that something is gone.
        gone: Edits that are neither in the image nor behind it, a sentence for each row of them.
    """

    state: CatalogState = field(default_factory=CatalogState)
    image: Txid | None = None
    last: Txid = Txid(0)
    knows_last: bool = True
    leader_epoch: Epoch = Epoch(0)
    damaged: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Elsewhere:
    """What another place has of the same catalog.

    Attributes:
        state: As of an image,
        edits: and those behind it.
        also: What is to be in the catalog besides, as if it came last.
    """

    state: CatalogState
    edits: Sequence[Edit]
    also: Sequence[Payload] = ()


def salvage(store: Path, store_id: UUID, files: Files, elsewhere: Elsewhere | None = None) -> Salvaged:
    """See what is left of the catalog of a store that nobody writes.

    Args:
        elsewhere: What another place has, beside what is left here.

    Raises:
        UnsupportedVersion: A newer version wrote an image or an edit.
        OSError: A file can't be read.
    """
    found = Salvaged()
    images = image.Images(store / paths.IMAGES, store_id)
    newest = images.newest()
    found.damaged += map(str, images.damaged)
    if newest is not None:
        found.image, found.state = newest.head.txid, newest.state
    if elsewhere is not None and elsewhere.state.txid > found.state.txid:
        found.state = elsewhere.state
    for txid in image.txids(images.directory):
        found.last = max(found.last, txid)
        with suppress(CorruptImage, OSError):
            head = image.head_of(paths.image_file(images.directory, txid))
            found.leader_epoch = max(found.leader_epoch, head.leader.epoch)
    kept = _edits(store, files, found)
    if elsewhere is not None:
        kept = {edit.txid: edit for edit in elsewhere.edits} | kept
        found.last = max([found.last, *kept])
    for txid, edit in sorted(kept.items()):
        found.leader_epoch = max(found.leader_epoch, edit.epoch)
        if txid > found.state.txid and edit.epoch >= found.state.leader_epoch:
            _miss(found, Txid(txid - 1))
            found.state = replace(found.state, txid=Txid(txid - 1)).after(edit)
    _miss(found, found.last)
    if not found.knows_last:
        found.gone.append(f"edits behind {found.last}, if there were any")
    return found


def _miss(found: Salvaged, until: Txid) -> None:
    """Say that edits behind the state are not there."""
    first = found.state.txid + 1
    if first <= until:
        found.gone.append(f"edit {first}" if first == until else f"edits {first} to {until}")


def _edits(store: Path, files: Files, found: Salvaged) -> dict[Txid, Edit]:
    """Edits that are right."""
    data = store / paths.JOURNAL / LMDB_FILES[0]
    kept: dict[Txid, Edit] = {}
    try:
        pages.verify(data, all_pages=True)
        for txid, value in _stored(store, files):
            found.last = max(found.last, txid)
            try:
                edit = edits.decode(value)
            except CorruptImage as error:
                found.damaged.append(f"edit {txid}: {error}")
            else:
                kept[edit.txid] = edit
        return kept
    except FileNotFoundError:
        found.damaged.append("The journal is missing.")
    except CorruptData as error:
        found.damaged.append(str(error))
    found.knows_last = False
    if data.exists():
        for value in pages.values(data, bytes_max=edits.EDIT_BYTES_MAX):
            with suppress(CorruptImage):
                edit = edits.decode(value)
                if edit.txid not in kept or kept[edit.txid].time_ms <= edit.time_ms:
                    kept[edit.txid] = edit
    found.last = max([found.last, *kept])
    return kept


def _stored(store: Path, files: Files) -> Iterator[tuple[Txid, bytes]]:
    with browse(store, files) as browser:
        for segment in browser.segments():
            if segment.first is not None:
                yield from browser.edits(segment.first)
