"""Health of the catalog: its images, its journal, and warnings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvstore.checkpoint.room import obstacle
from kvstore.disk.files import refusals
from kvstore.errors import CorruptImage, StoreError
from kvstore.index.space import HeldIndex
from kvstore.meta import image
from kvstore.meta.journal import Journal
from logformat import paths
from logformat.ids import Txid

LATE_JOURNALS = 2
"""Number of journal segments after which the newest image is too old, whether or not there is a reason."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """A verified image.

    Attributes:
        txid: The last edit in it.
        bytes: Its size.
        created_ms: Time of writing, in milliseconds since the Unix epoch.
    """

    txid: Txid
    bytes: int
    created_ms: int


@dataclass(frozen=True)
class Health:
    """Health of the catalog; true if there are no warnings.

    Attributes:
        txid: Its last edit.
        images: Valid images, the newest first.
        segments: First edits of the journal's segments, in order.
        warnings: Problems that need attention, one sentence each.
        held: Large indexes whose free pages a reader holds; see :class:`kvstore.index.space.HeldIndex`.
        memtable_bytes: Memory of what this process has acknowledged and not yet merged into indexes, about.
        memtable_limit: What that may take; see ``memtable_bytes`` of :func:`kvstore.open`.
        merges: How often this process has merged of that into indexes.
        merge_waits: How often writes waited for a merge.
        advice: Tables that would write less if memtables were larger, as this process has counted; one sentence each.
    """

    txid: Txid
    images: list[ImageFacts]
    segments: list[Txid]
    warnings: list[str] = field(default_factory=list)
    held: list[HeldIndex] = field(default_factory=list)
    memtable_bytes: int = 0
    memtable_limit: int = 0
    merges: int = 0
    merge_waits: int = 0
    advice: list[str] = field(default_factory=list)

    @property
    def edits_behind_image(self) -> int:
        """Number of edits after the newest image, which opening the store replays."""
        return self.txid - (self.images[0].txid if self.images else 0)

    @property
    def ok(self) -> bool:
        """Whether there are no warnings."""
        return not self.warnings

    def __bool__(self) -> bool:
        return self.ok


def health(store: Path, journal: Journal, failure: StoreError | None, edits_per_image: int) -> Health:
    """Inspect the catalog; this reads every image.

    Args:
        failure: Why the last checkpoint of this process failed.
        edits_per_image: Number of edits after which a checkpoint is due.

    Raises:
        CorruptImage, UnsupportedVersion: The catalog can't be loaded.
    """
    images, warnings = [], []
    directory = journal.images.directory
    with refusals(directory):
        for txid in image.txids(directory):
            path = paths.image_file(directory, txid)
            try:
                head = image.verify(path, journal.images.store_id)
                images.append(ImageFacts(txid, path.stat().st_size, head.created_ms))
            except FileNotFoundError:
                continue  # a checkpoint removed it meanwhile
            except CorruptImage as error:
                warnings.append(str(error))
    result = Health(journal.state().txid, images, journal.segments(), warnings)
    if result.edits_behind_image >= edits_per_image:
        reason = failure or obstacle(store)
        if reason is not None or result.edits_behind_image >= LATE_JOURNALS * edits_per_image:
            warnings.append(
                f"The newest image of the catalog is {result.edits_behind_image} edits old, one is due every"
                f" {edits_per_image}; " + (f"the reason: {reason}" if reason else "run `kvstore meta checkpoint`.")
            )
    return result
