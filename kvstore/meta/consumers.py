"""Consumers of a table in the catalog: their names, and the next offset that each reads. Pure.

* The log has every position of a consumer: the transaction that adds the edit verifies it, and no edit is added while
  retention removes a segment (docs/format.md, Retention).
* A lease is a consumer that expires. An expired lease has no effect; the next edit of a consumer removes it, by the
  time in that edit, so that every replay gives the same state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from logformat.catalog.edits import DropConsumer, SetConsumer
from logformat.ids import BucketId, Offset, TableId


@dataclass(frozen=True, slots=True)
class NamedConsumer:
    """A consumer of a table.

    Attributes:
        offsets: The next offset to read in each bucket, in order of buckets.
        until_ms: When a lease expires, in milliseconds since the Unix epoch; None for a consumer that lasts until it is
            dropped.
    """

    offsets: tuple[Offset, ...]
    until_ms: int | None = None

    def is_over(self, now_ms: int) -> bool:
        """Whether it is a lease that has expired."""
        return self.until_ms is not None and self.until_ms <= now_ms


@dataclass(frozen=True)
class TableConsumers:
    """Consumers of one table, by name."""

    named: Mapping[str, NamedConsumer] = field(default_factory=dict)

    def lasting(self) -> dict[str, dict[int, int]]:
        """Positions by name and bucket, without leases."""
        return {
            name: dict(enumerate(consumer.offsets))
            for name, consumer in sorted(self.named.items())
            if consumer.until_ms is None
        }

    def reader_positions(self, bucket: BucketId, now_ms: int) -> list[Offset]:
        """Positions of all consumers in a bucket, without expired leases."""
        return [consumer.offsets[bucket] for consumer in self.named.values() if not consumer.is_over(now_ms)]

    def after(self, edit: SetConsumer | DropConsumer, time_ms: int) -> TableConsumers:
        """The consumers after one more edit of this time (ms); dropping an unknown name does nothing."""
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
