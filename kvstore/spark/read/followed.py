"""What a stream asks of the table that it follows, wherever the table is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kvstore.read.scan import KeyRange
from kvstore.spark.options import Place
from kvstore.spark.read.offsets import StreamOffset
from kvstore.spark.read.tasks import ReadRange, ReadTask
from logformat.ids import Epoch, Offset


class Followed(Protocol):
    """A table that a stream follows: of a store, of a replica, or a shared one."""

    @property
    def leader_epoch(self) -> Epoch | None:
        """Of a replica, the epoch of the leader that shipped what was last looked at."""

    def close(self) -> None:
        """Give up what is open."""

    def renew(self) -> None:
        """Take what is new.

        Raises:
            NoSuchTable: The table was dropped.
            SchemaMismatch: Columns of the table were renamed or dropped since the stream began.
        """

    def bounds(self) -> dict[int, tuple[Offset, Offset]]:
        """Start and end of the readable changes of each bucket."""

    def begin_at(self, start: Place) -> tuple[dict[int, Offset], dict[int, int] | None]:
        """For each bucket, where the stream starts; if that is with the rows, the time of the last commit before."""

    def check_continues(self, before: StreamOffset) -> None:
        """Verify that the changes after an offset continue those before it."""

    def whole_ends(
        self, before: Mapping[int, Offset], ends: Mapping[int, Offset], records: int
    ) -> dict[int, Offset] | None:
        """Ends of a read of about so many changes that has each write whole; None if that is not known."""

    def commit_end(self, bucket: int, start: Offset, end: Offset, records: int) -> Offset:
        """The end of a read of whole commits: at most ``records`` changes, but at least one commit."""

    def key_after(self, bucket: int, keys: KeyRange, rows: int, as_of: Offset) -> tuple[bytes | None, int]:
        """Where a batch of the rows at the start ends; see :meth:`kvstore.read.splits.Splits.key_after`."""

    def tasks(self, ranges: Sequence[ReadRange], cores: int | None) -> list[ReadTask]:
        """Tasks that read the ranges."""

    def register(self, before: Mapping[int, Offset], *, began: bool) -> None:
        """Keep the changes from an offset on.

        Args:
            began: Whether the stream starts there.
        """

    def committed(self, end: StreamOffset) -> None:
        """The changes before an offset were read, and are not read again."""
