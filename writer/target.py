"""What a writer writes to: a table and its buckets, as little of them as it needs.

A target may be the bucket itself or a way to it that loses things. It may lose, delay, reorder and double requests and
answers; it may not change them, and an answer that comes is the bucket's.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from logformat.ids import Epoch, WriterId
from logformat.rows.changes import Changes


class Identity(NamedTuple):
    """Who writes.

    Attributes:
        writer_id: Never used by anyone else.
        epoch: Incarnation of a named writer; lower ones are fenced.
        name: None for a writer that lives as long as its process.
    """

    writer_id: WriterId
    epoch: Epoch = Epoch(0)
    name: str | None = None


class Appended(Protocol):
    """What a bucket answers to a batch."""

    @property
    def first_offset(self) -> int:
        """Of the batch's first change, or the one offset it took without any."""

    @property
    def last_offset(self) -> int:
        """Of its last change, inclusive."""

    @property
    def duplicated(self) -> bool:
        """Whether a batch of its sequence was there before; then the offsets are that one's."""

    @property
    def timestamp_ms(self) -> int:
        """Commit timestamp, milliseconds since the Unix epoch."""


class AppendTarget(Protocol):
    """One bucket. All errors are StoreErrors; what they mean stands in docs/sequences.md."""

    def submit(
        self, changes: Changes, writer_id: int, sequence: int, writer_epoch: int, *, schema_id: int | None = None
    ) -> Future[Any]:
        """Send one batch. Its answer, an :class:`Appended`, may come late or never; an error may be raised at once.

        Args:
            schema_id: Schema the rows follow. If the table has more columns by now, these are null.
        """

    def begin(self, writer_id: int) -> int | None:
        """Become the one who writes this bucket under a name.

        Returns:
            Sequence of the writer's last batch, None if there is none; it is final, because no earlier incarnation can
            write any more.

        Raises:
            Unavailable: Not now.
        """


class TableOptions(Protocol):
    """How the table behaves."""

    @property
    def auto_increment(self) -> str | None:
        """The column that the table fills, and that rows don't have."""

    @property
    def delete_behavior(self) -> str:
        """``allow``, ``ignore`` or ``disable``."""


class TargetTable(Protocol):
    """The table."""

    @property
    def schema(self) -> pa.Schema:
        """Columns, typed as they are stored."""

    @property
    def schema_id(self) -> int:
        """Of the schema; each has another, and it grows."""

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """Names of the key's columns in key order; None for a log table."""

    @property
    def options(self) -> Any:
        """Its :class:`TableOptions`."""

    @property
    def buckets(self) -> int:
        """How many there are, numbered from 0."""

    def bucket(self, bucket: int, /) -> Any:
        """The :class:`AppendTarget` of a bucket."""

    def by_bucket(self, changes: Changes, other: int = 0, *, schema_id: int | None = None) -> dict[int, Changes]:
        """Changes by the bucket they belong to, those of one in the order they came.

        Args:
            changes: Of that schema; the current one if None.

        Raises:
            InvalidRequest: A row does not fit the table.
        """
