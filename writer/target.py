"""The interface that a writer needs of a table and its buckets.

A target may be the bucket itself or an unreliable connection to it. It may lose, delay, reorder and duplicate requests
and answers; it may not change them, and every answer comes from the bucket.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from logformat.ids import Epoch, WriterId
from logformat.rows.changes import Changes


class Identity(NamedTuple):
    """Identity of a writer.

    Attributes:
        writer_id: Unique to this writer.
        epoch: Incarnation of a named writer; lower epochs are fenced.
        name: None for a writer that lives as long as its process.
    """

    writer_id: WriterId
    epoch: Epoch = Epoch(0)
    name: str | None = None


class Appended(Protocol):
    """A bucket's answer to a batch."""

    @property
    def first_offset(self) -> int:
        """Offset of the batch's first change, or the one offset that an empty batch took."""

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last change, inclusive."""

    @property
    def duplicated(self) -> bool:
        """Whether the bucket already had a batch of this sequence; then the offsets are that batch's."""

    @property
    def timestamp_ms(self) -> int:
        """Commit timestamp, milliseconds since the Unix epoch."""


class AppendTarget(Protocol):
    """One bucket. All errors are StoreErrors; docs/sequences.md defines their meaning."""

    def submit(
        self, changes: Changes, writer_id: int, sequence: int, writer_epoch: int, *, schema_id: int | None = None
    ) -> Future[Any]:
        """Send one batch. Its answer, an :class:`Appended`, may arrive late or never; an error may be raised at once.

        Args:
            schema_id: Schema of the rows. Columns that the table has gained since are null.
        """

    def begin(self, writer_id: int) -> int | None:
        """Start as the current incarnation of a named writer in this bucket.

        Returns:
            Sequence of the writer's last batch, None if there is none. It is final: no earlier incarnation can write
            any more.

        Raises:
            Unavailable: The bucket can't answer now.
        """


class TableOptions(Protocol):
    """Options of the table that a writer needs."""

    @property
    def auto_increment(self) -> str | None:
        """The column that the table fills and given rows lack."""

    @property
    def delete_behavior(self) -> str:
        """``allow``, ``ignore`` or ``disable``."""


class TargetTable(Protocol):
    """The table that a writer writes to."""

    @property
    def schema(self) -> pa.Schema:
        """Columns in their stored types."""

    @property
    def schema_id(self) -> int:
        """Id of the current schema; it grows with each change."""

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """Names of the key's columns in key order; None for a log table."""

    @property
    def options(self) -> Any:
        """The table's :class:`TableOptions`."""

    @property
    def buckets(self) -> int:
        """Number of buckets; they are numbered from 0."""

    def bucket(self, bucket: int, /) -> Any:
        """The :class:`AppendTarget` of a bucket."""

    def by_bucket(self, changes: Changes, other: int = 0, *, schema_id: int | None = None) -> dict[int, Changes]:
        """Changes partitioned by bucket; within a bucket they keep their order.

        Args:
            schema_id: Schema of the changes; None for the current one.

        Raises:
            InvalidRequest: A row does not fit the table.
        """
