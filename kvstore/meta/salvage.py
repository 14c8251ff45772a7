"""The catalog that can be read from damaged images or a damaged journal. Nothing is written.

* Only bytes whose checksum is right are used; what is missing is left out and reported.
* A record of a newer version is an error: leaving it out would lose tables which an upgrade could read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from kvstore.disk import pages
from kvstore.disk.files import Files
from kvstore.disk.lmdb_files import LMDB_FILES
from kvstore.errors import CorruptData, CorruptImage
from kvstore.meta import image
from kvstore.meta.browse import browse_catalog
from kvstore.meta.state import CatalogState
from kvstore.meta.table_files import AboutDefinition, FoundTables, TableFiles, has_changes, lost_edits
from logformat import paths
from logformat.catalog import edits
from logformat.catalog.edits import DropTable, Edit, Payload
from logformat.ids import Epoch, TableId, Txid


@dataclass
class Salvaged:
    """The readable part of a catalog.

    Attributes:
        state: The newest valid image, with all readable edits after it.
        image: Txid of this image; None if there is none.
        last: The highest txid in images and edits.
        knows_last: Whether it is certain that no later edit existed.
        leader_epoch: The highest leader epoch in images and edits.
        damaged: One sentence for each damage; damage need not mean that edits are lost.
        gone: One sentence for each range of edits that neither the image nor the journal has.
        restored: Names of tables whose definitions, or parts of them, come from the files beside their data.
    """

    state: CatalogState = field(default_factory=CatalogState)
    image: Txid | None = None
    last: Txid = Txid(0)
    knows_last: bool = True
    leader_epoch: Epoch = Epoch(0)
    damaged: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Elsewhere:
    """The same catalog in another place, such as a replica.

    Attributes:
        state: State of an image there.
        edits: Edits after that image.
        also: Further changes that the recovered catalog gets, as its last edits.
    """

    state: CatalogState
    edits: Sequence[Edit]
    also: Sequence[Payload] = ()


def salvage(store: Path, store_id: UUID, files: Files, elsewhere: Elsewhere | None = None) -> Salvaged:
    """Read what is readable of the catalog of a store; no process may write it meanwhile.

    Args:
        elsewhere: The same catalog in another place, used together with this one.

    Raises:
        UnsupportedVersion: A newer version wrote an image or an edit.
        OSError: A file can't be read.
    """
    salvaged = Salvaged()
    images = image.Images(store / paths.IMAGES, store_id)
    newest = images.newest()
    salvaged.damaged += map(str, images.damaged)
    if newest is not None:
        salvaged.image, salvaged.state = newest.head.txid, newest.state
    if elsewhere is not None and elsewhere.state.txid > salvaged.state.txid:
        salvaged.state = elsewhere.state
    for txid in image.txids(images.directory):
        salvaged.last = max(salvaged.last, txid)
        with suppress(CorruptImage, OSError):
            head = image.head_of(paths.image_file(images.directory, txid))
            salvaged.leader_epoch = max(salvaged.leader_epoch, head.leader.epoch)
    kept = _edits(store, files, salvaged)
    if elsewhere is not None:
        kept = {edit.txid: edit for edit in elsewhere.edits} | kept
        salvaged.last = max([salvaged.last, *kept])
    tables = TableFiles(store, store_id, files).found()
    salvaged.damaged += tables.damaged
    base, changed = salvaged.state.txid, dict[TableId, Txid]()
    dropped = {edit.payload.table_id for edit in kept.values() if isinstance(edit.payload, DropTable)}
    for txid, edit in sorted(kept.items()):
        salvaged.leader_epoch = max(salvaged.leader_epoch, edit.epoch)
        if txid > salvaged.state.txid and edit.epoch >= salvaged.state.leader_epoch:
            _miss(salvaged, Txid(txid - 1))
            salvaged.state = replace(salvaged.state, txid=Txid(txid - 1)).after(edit)
            if isinstance(edit.payload, AboutDefinition):
                changed[edit.payload.table_id] = txid
    if any(id >= salvaged.state.next_table_id and has_changes(store / paths.TABLES / str(id)) for id in tables.tables):
        salvaged.knows_last = False  # the journal is an older copy
    if not salvaged.knows_last:
        for table in tables.tables.values():
            salvaged.last = max(salvaged.last, table.txid)
            salvaged.leader_epoch = max(salvaged.leader_epoch, table.epoch)
    _miss(salvaged, salvaged.last)
    if not salvaged.knows_last:
        salvaged.gone.append(f"edits after {salvaged.last}, if there were any")
    if salvaged.gone:
        _restore_tables(salvaged, tables, dropped, lambda table: changed.get(table, base))
    return salvaged


def _restore_tables(
    salvaged: Salvaged, tables: FoundTables, dropped: Container[TableId], as_of: Callable[[TableId], Txid]
) -> None:
    """Get back what the edits that are missing said of tables that have a file beside their data."""
    payloads, problems = lost_edits(salvaged.state, tables, dropped, as_of)
    salvaged.damaged += problems
    for payload in payloads:
        edit = Edit(txid=Txid(salvaged.state.txid + 1), epoch=salvaged.state.leader_epoch, time_ms=0, payload=payload)
        salvaged.state = salvaged.state.after(edit)
    changed = {payload.table_id for payload in payloads}
    salvaged.restored = sorted(table.name for id, table in salvaged.state.tables.items() if id in changed)


def _miss(salvaged: Salvaged, until: Txid) -> None:
    """Report edits after the state that are missing."""
    txid = salvaged.state.txid + 1
    if txid <= until:
        salvaged.gone.append(f"edit {txid}" if txid == until else f"edits {txid} to {until}")


def _edits(store: Path, files: Files, salvaged: Salvaged) -> dict[Txid, Edit]:
    """Readable edits."""
    data = store / paths.JOURNAL / LMDB_FILES[0]
    kept: dict[Txid, Edit] = {}
    try:
        pages.verify(data, all_pages=True)
        for txid, value in _stored(store, files):
            salvaged.last = max(salvaged.last, txid)
            try:
                edit = edits.decode(value)
            except CorruptImage as error:
                salvaged.damaged.append(f"edit {txid}: {error}")
            else:
                kept[edit.txid] = edit
        return kept
    except FileNotFoundError:
        salvaged.damaged.append("The journal is missing.")
    except CorruptData as error:
        salvaged.damaged.append(str(error))
    salvaged.knows_last = False
    if data.exists():
        for value in pages.values(data, bytes_max=edits.EDIT_BYTES_MAX):
            with suppress(CorruptImage):
                edit = edits.decode(value)
                if edit.txid not in kept or kept[edit.txid].time_ms <= edit.time_ms:
                    kept[edit.txid] = edit
    salvaged.last = max([salvaged.last, *kept])
    return kept


def _stored(store: Path, files: Files) -> Iterator[tuple[Txid, bytes]]:
    with browse_catalog(store, files) as browser:
        for segment in browser.segments():
            if segment.first is not None:
                yield from browser.edits(segment.first)
