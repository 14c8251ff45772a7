"""What a read asks of a bucket, wherever its rows and changes are.

A bucket of a store on this machine answers these calls, and so does one of a replica or of a shared table that is
opened in place. Reads know nothing else of a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self

from kvstore.index.index import View
from kvstore.log.segments import FoundBatch, LogIdentity
from kvstore.memtable.memtable import Memtable
from logformat.ids import Offset
from logformat.log.index_state import IndexState


class LogReads(Protocol):
    """Changes of a bucket, up to the ``applied_offset`` of one of its states or views."""

    def start(self) -> Offset:
        """The first offset that is there."""

    def batches(self, start: Offset, end: Offset) -> Iterator[FoundBatch]:
        """Batches that contain offsets from ``start`` to ``end`` (exclusive), in order; the first may begin earlier.

        Raises:
            OffsetOutOfRange: Changes from ``start`` on are not there any more.
            CorruptBatch: A batch is damaged.
        """

    def rest(self) -> None:
        """Hold no file until there is more to read, after the last batch."""

    def first_at_or_after(self, timestamp: int, end: Offset) -> Offset:
        """Base offset of the first batch not older than a time (ms); ``end`` if all are."""


class BucketReads(Protocol):
    """One bucket, read by any thread."""

    @property
    def identity(self) -> LogIdentity:
        """Ids of the store, the table and the bucket."""

    @property
    def log(self) -> LogReads:
        """The changes of the bucket."""

    @property
    def watched(self) -> Path | None:
        """Directory in which a write of the published end says that there are changes; None if nothing says so."""

    def snapshot(self) -> AbstractContextManager[View]:
        """A view of every change acknowledged until now, to read many rows; writing goes on."""

    def latest(self) -> AbstractContextManager[View]:
        """A view of every acknowledged change, for short reads."""

    def memtable(self) -> Memtable | None:
        """What the index lacks, if this process writes the bucket: the shortest way to a few rows."""

    def value(self, key: bytes) -> bytes | None:
        """Value of a key as :meth:`latest` shows it; None if it is not there."""

    def offsets(self) -> tuple[Offset, Offset]:
        """The first offset that the log holds, and the offset after the last acknowledged change."""

    def shown(self) -> IndexState:
        """How far the bucket is with every acknowledged change, once every process sees these changes."""

    def committed(self) -> IndexState:
        """How far the bucket is for every process; cheap enough for frequent calls."""

    def row_count(self) -> int:
        """Number of rows; of a log table, number of appended records.

        Raises:
            UnsupportedOperation: The rows are not counted, because the changelog is a WAL image.
        """

    def for_one_reader(self) -> Self:
        """The bucket for one reader of changes, which asks for one range of offsets after the other."""
