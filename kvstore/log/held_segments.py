"""Segments that are held open, so that some batches can be read again even if the log has removed them meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from weakref import WeakValueDictionary, finalize

from kvstore.disk.files import Files, open_file
from kvstore.log.segments import FoundBatch
from logformat.log.batch import LAYOUTS, BatchHeader, verify

SEGMENTS_MAX = 8
"""So many are held at most: a tail has one or two, unless segments are small."""


class HeldSegments:
    """Segments of one log, each with one descriptor as long as there is a batch of it that may be read again.

    Args:
        files: Files of the store that they belong to, if that is open.
    """

    def __init__(self, files: Files | None = None) -> None:
        self._files = files
        self._held: WeakValueDictionary[Path, _Segment] = WeakValueDictionary()

    def batch(self, batch: FoundBatch) -> HeldBatch | None:
        """A batch that can be read again; None if it has to be used now.

        So it is if the log has removed its segment already, or written it again, if that can't be opened (the process
        may have no descriptor left), and if enough others are held.
        """
        segment = self._held.get(batch.path)
        # A segment whose sync failed is written again, as another file of the same name, which has more batches.
        if segment is None or not segment.has(batch):
            if segment is None and len(self._held) >= SEGMENTS_MAX:
                return None
            try:
                segment = _Segment(batch.path, self._files)
            except OSError:
                return None
            if not segment.has(batch):
                return None
            self._held[batch.path] = segment
        return HeldBatch(segment, batch)


class HeldBatch:
    """A batch that was read, and can be read again."""

    def __init__(self, segment: _Segment, batch: FoundBatch) -> None:
        self.header = batch.header
        self._segment = segment
        self._position = batch.position

    def read(self) -> tuple[BatchHeader, memoryview]:
        """The batch, verified.

        Raises:
            CorruptBatch: It has been damaged meanwhile.
        """
        data = memoryview(os.pread(self._segment.descriptor, self.header.size, self._position))
        verify(self.header, data)
        return self.header, data


class _Segment:
    def __init__(self, path: Path, files: Files | None) -> None:
        file = open_file(path, files)
        finalize(self, file.close)
        self.descriptor = file.fileno()

    def has(self, batch: FoundBatch) -> bool:
        """Whether the header of a batch is where it was."""
        size = LAYOUTS[batch.header.magic].size
        return os.pread(self.descriptor, size, batch.position) == batch.data[:size]
