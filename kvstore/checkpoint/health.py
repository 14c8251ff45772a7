"""How the catalog stands: its images, its journal, and what somebody should see to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvstore.checkpoint.room import obstacle
from kvstore.errors import CorruptImage, StoreError
from kvstore.files import refusals
from kvstore.meta import image
from kvstore.meta.journal import Journal
from logformat import paths
from logformat.ids import Txid

LATE_JOURNALS = 2
"""With as many edits behind it as fill these, the newest image is too old, whether or not there is a reason."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image that was read to its end and found right.

    Attributes:
        txid: The last edit in it.
        bytes: Its size.
        created_ms: When it was made.
    """

    txid: Txid
    bytes: int
    created_ms: int


@dataclass(frozen=True)
class Health:
    """How the catalog stands; true if there is nothing to be seen to.

    Attributes:
        txid: Its last edit.
        images: Those that are right, the newest first.
        segments: First edits of the journal's segments, in order.
        warnings: What somebody should see to, one sentence each.
    """

    txid: Txid
    images: list[ImageFacts]
    segments: list[Txid]
    warnings: list[str] = field(default_factory=list)

    @property
    def edits_behind_image(self) -> int:
        """Edits that who opens the store has to replay."""
        return self.txid - (self.images[0].txid if self.images else 0)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to be seen to."""
        return not self.warnings

    def __bool__(self) -> bool:
        return self.ok


def health(store: Path, journal: Journal, failure: StoreError | None, edits_per_image: int) -> Health:
    """See how the catalog stands; every image is read.

    Args:
        failure: Why the last checkpoint of this process came to no end.
        edits_per_image: One is due after so many.

    Raises:
        CorruptImage, UnsupportedVersion: The catalog can't be loaded.
    """
    found, warnings = [], []
    directory = journal.images.directory
    with refusals(directory):
        for txid in image.txids(directory):
            path = paths.image_file(directory, txid)
            try:
                head = image.verify(path, journal.images.store_id)
                found.append(ImageFacts(txid, path.stat().st_size, head.created_ms))
            except FileNotFoundError:
                continue  # newer ones have taken its place
            except CorruptImage as error:
                warnings.append(str(error))
    told = Health(journal.state().txid, found, journal.segments(), warnings)
    if told.edits_behind_image >= edits_per_image:
        reason = failure or obstacle(store)
        if reason is not None or told.edits_behind_image >= LATE_JOURNALS * edits_per_image:
            warnings.append(
                f"The newest image of the catalog is {told.edits_behind_image} edits old, one is due every"
                f" {edits_per_image}; " + (f"the reason: {reason}" if reason else "run `kvstore meta checkpoint`.")
            )
    return told
