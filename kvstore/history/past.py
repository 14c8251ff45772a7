"""What reads of the past need of an open table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvstore.bucket.reads import BucketReads
from kvstore.errors import InvalidRequest, StoreError
from kvstore.history.origin import Origins
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import End, Start
from kvstore.read.follow import range_between
from kvstore.request.partition import bound_in
from logformat.ids import BucketId, Offset


@dataclass(frozen=True, slots=True)
class Past:
    """An open table whose changes are read.

    Attributes:
        handles: One for each bucket, in order.
        current: Returns the definition by which the reader calls the columns; raises if the table has no key, was
            dropped, or the store was closed.
        latest: Returns the table's current entry in the catalog; read after an end of a log, it has the schemas of all
            changes before that end.
        origins: Returns who wrote batches, by the names that writers and jobs have now.
    """

    handles: Sequence[BucketReads]
    current: Callable[[], TableDefinition]
    latest: Callable[[], TableDefinition]
    origins: Callable[[], Origins]

    @property
    def buckets(self) -> list[BucketId]:
        """All buckets."""
        return [BucketId(bucket) for bucket in range(len(self.handles))]

    def range_of(self, bucket: BucketId, start: Start, end: End) -> tuple[Offset, Offset, Offset]:
        """First and end (exclusive) of a range of changes in a bucket, and the end of its log, all as of now.

        Raises:
            InvalidRequest: A place is not possible, or the end comes before the start.
            OffsetOutOfRange: The log does not have it.
        """
        check_start(start)
        handle = self.handles[bucket]
        now = handle.shown().applied_offset
        begin, stop = bound_in("start", start, bucket, self.buckets), bound_in("end", end, bucket, self.buckets)
        return (*range_between(begin, stop, handle.log, now), now)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While open, an error that a dropped table or closed store causes becomes the error about that."""
        try:
            yield
        except (StoreError, OSError):
            self.current()
            raise
        self.current()


def check_start(start: Any) -> None:
    """Refuse ``full``, which is a start of a changelog only.

    Raises:
        InvalidRequest: It is ``full``.
    """
    if isinstance(start, str) and start == "full":
        raise InvalidRequest("The past begins at an offset, a time, `earliest` or `latest`.", start=start)
