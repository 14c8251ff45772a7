"""What the catalog knows of who reads a table's log: names, and from where on each has still to read. Pure.

* The log holds every offset at which somebody stands: it is looked at in the transaction that puts the edit, and while
  a segment goes nobody puts one (docs/format.md, Retention).
* A lease is a consumer with an end. Once it is over it counts for nothing; the next edit of the kind removes it, by
  the time in that edit, so that every replay comes to the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from logformat.catalog.edits import DropConsumer, SetConsumer
from logformat.ids import BucketId, Offset, TableId


@dataclass(frozen=True, slots=True)
class NamedConsumer:
    """Who reads a table.

    Attributes:
        offsets: The next to read, for each bucket in order.
        until_ms: When a lease is over; None for one that lasts until it is dropped.
    """

    offsets: tuple[Offset, ...]
    until_ms: int | None = None

    def is_over(self, now_ms: int) -> bool:
        """Whether it is a lease whose time has come."""
        return self.until_ms is not None and self.until_ms <= now_ms


@dataclass(frozen=True)
class TableConsumers:
    """Who reads one table, by name."""

    named: Mapping[str, NamedConsumer] = field(default_factory=dict)

    def lasting(self) -> dict[str, dict[int, int]]:
        """Offsets by bucket of those that are no leases, by name."""
        return {
            name: dict(enumerate(consumer.offsets))
            for name, consumer in sorted(self.named.items())
            if consumer.until_ms is None
        }

    def reader_positions(self, bucket: BucketId, now_ms: int) -> list[Offset]:
        """From where on somebody has still to read a bucket."""
        return [consumer.offsets[bucket] for consumer in self.named.values() if not consumer.is_over(now_ms)]

    def after(self, edit: SetConsumer | DropConsumer, time_ms: int) -> TableConsumers:
        """They with one more edit, made at a time (ms); to drop a name that is gone does nothing."""
        kept = {
            name: consumer
            for name, consumer in self.named.items()
            if name != edit.name and not consumer.is_over(time_ms)
        }
        if isinstance(edit, SetConsumer):
            kept[edit.name] = NamedConsumer(tuple(edit.offsets), edit.until_ms)
        return TableConsumers(kept)


NO_CONSUMERS = TableConsumers()


def moved_back(table: TableId, consumers: TableConsumers, ends: Mapping[int, int]) -> Iterator[SetConsumer]:
    """Edits that move the consumers of a table back to the ends of its buckets.

    A consumer after the end of a log would miss the changes that are appended next.

    Args:
        ends: The ends by bucket; in a bucket without an end no consumer moves.
    """
    for name, consumer in consumers.named.items():
        offsets = [Offset(min(at, ends.get(bucket, at))) for bucket, at in enumerate(consumer.offsets)]
        if offsets != list(consumer.offsets):
            yield SetConsumer(table_id=table, name=name, offsets=offsets, until_ms=consumer.until_ms)
