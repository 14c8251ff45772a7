"""Repair of the files beside a segment, which are derived from the log: its sparse index and its ``.writers`` file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvstore.disk.files import Files, read_file
from kvstore.errors import CorruptData, UnsupportedVersion
from kvstore.log.writer_state import WriterStates
from kvstore.repair.evidence import LogEvidence
from kvstore.repair.quarantine import Quarantine
from logformat import paths
from logformat.ids import Offset
from logformat.log import sparse_index
from logformat.log.batch import BatchHeader
from logformat.log.segment import NO_OFFSET
from logformat.log.sparse_index import Entry
from logformat.log.writer_entry import WRITERS_BYTES_MAX, decode_snapshot


class DerivedFilesRepair:
    """Repairs sparse indexes and ``.writers`` files of one log; its segments are passed in order of their offsets.

    Args:
        log: Directory of the log.
        repaired: Gets one sentence for each file that is repaired.
    """

    def __init__(
        self, log: Path, evidence: LogEvidence, files: Files, quarantine: Quarantine, repaired: list[str]
    ) -> None:
        self._log = log
        self._snapshots = {each.offset: each for each in evidence.snapshots}
        self._files = files
        self._quarantine = quarantine
        # Writers known before the next batch; None if the batches before it are not all known.
        self._writers: WriterStates | None = None
        self._repaired = repaired

    def skip(self) -> None:
        """Pass over a segment that has a hole: the writers after it are unknown."""
        self._writers = None

    def repair(self, base: Offset, entries: Sequence[Entry], headers: Sequence[BatchHeader], *, is_first: bool) -> None:
        """Repair the files of one complete segment.

        Args:
            entries: An entry for each of its batches.
            headers: The headers of these batches.
            is_first: Whether the log begins with this segment.

        Raises:
            UnsupportedVersion: A newer version wrote a file.
            OSError: The disk refuses.
        """
        self._repair_sparse_index(base, entries)
        self._repair_writers(base, is_first=is_first)
        for header in headers:
            if self._writers is None and header.base_offset in self._snapshots:
                self._writers = WriterStates(self._snapshots[header.base_offset].writers())
            if self._writers is not None:
                self._writers.remember(header)

    def _repair_sparse_index(self, base: Offset, entries: Sequence[Entry]) -> None:
        path = paths.sparse_index_file(self._log, base)
        try:
            data = read_file(path, bytes_max=sparse_index.SPARSE_INDEX_BYTES_MAX)
        except (FileNotFoundError, CorruptData):
            data = b""
        stored = sparse_index.decode(data)
        is_complete = len(data) == sparse_index.HEAD_BYTES + len(stored) * sparse_index.ENTRY_BYTES
        if is_complete and set(stored) <= set(entries):
            return
        due: list[Entry] = []
        for entry in entries:
            if sparse_index.is_due(entry.position, due[-1].position if due else None):
                due.append(entry)
        self._replace(path, sparse_index.encode(due))

    def _repair_writers(self, base: Offset, *, is_first: bool) -> None:
        path = paths.writers_file(self._log, base)
        if is_first and not base:
            self._writers = WriterStates({})
        try:
            offset, writers = decode_snapshot(read_file(path, bytes_max=WRITERS_BYTES_MAX))
        except FileNotFoundError:
            return
        except UnsupportedVersion:
            raise
        except CorruptData:
            offset, writers = NO_OFFSET, {}
        if is_first and offset == base and self._writers is None:
            self._writers = WriterStates(writers)
        if offset == base and (self._writers is None or self._writers.all() == writers):
            return
        if self._writers is None:
            self._quarantine.move(path)
            self._repaired.append(f"{path.name} was damaged: moved to the quarantine, for it only saves time")
        else:
            self._replace(path, self._writers.snapshot(base))

    def _replace(self, path: Path, data: bytes) -> None:
        if path.exists():
            self._quarantine.copy(path)
        self._files.publish(path, data)
        self._repaired.append(f"{path.name} was damaged or missing: rebuilt from the log")
