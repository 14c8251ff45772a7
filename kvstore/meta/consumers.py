"""Consumers of a table in the catalog: their names, and the next offset that each reads. Pure.

* The log has every position of a consumer: the transaction that adds the edit verifies it, and no edit is added while
  retention removes a segment (docs/format.md, Retention).
* A lease is a consumer that expires. An expired lease has no effect; the next edit of a consumer removes it, by the
  time in that edit, so that every replay gives the same state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from kvstore.meta.persistent_map import PersistentMap
from logformat.catalog.edits import DropConsumer, SetConsumer
from logformat.ids import BucketId, Offset, TableId


@dataclass(frozen=True, slots=True)
class NamedConsumer:
    """A consumer of a table.

    Attributes:
        offsets: The next offset to read in each bucket, in order of buckets.
        until_ms: When a lease expires, in milliseconds since the Unix epoch; None for a consumer that lasts until it is
            dropped.
        filter: Which rows a subscription reads under this name; None if that is not known.
    """

    offsets: tuple[Offset, ...]
    until_ms: int | None = None
    filter: str | None = None

    def is_over(self, now_ms: int) -> bool:
        """Whether it is a lease that has expired."""
        return self.until_ms is not None and self.until_ms <= now_ms


class NamedConsumers(PersistentMap[str, NamedConsumer]):
    """Consumers by name. They are searched for expired leases only once one may have expired."""

    __slots__ = ("_next_ms",)

    def __init__(self, given: Mapping[str, NamedConsumer] | None = None) -> None:
        super().__init__(given)
        self._next_ms = min((each.until_ms for each in self.values() if each.until_ms is not None), default=None)
        """No lease expires before this time."""

    def put(self, key: str, value: NamedConsumer) -> Self:
        """The consumers with this one."""
        made = super().put(key, value)
        made._next_ms = min((each for each in (self._next_ms, value.until_ms) if each is not None), default=None)
        return made

    def without(self, key: str) -> Self:
        """The consumers without this one."""
        made = super().without(key)
        made._next_ms = self._next_ms
        return made

    def without_expired(self, now_ms: int) -> Self:
        """The consumers without expired leases."""
        if self._next_ms is None or now_ms < self._next_ms:
            return self
        return type(self)({name: each for name, each in self.items() if not each.is_over(now_ms)})


@dataclass(frozen=True)
class TableConsumers:
    """Consumers of one table, by name."""

    named: NamedConsumers = field(default_factory=NamedConsumers)

    def position(self, name: str) -> dict[int, int] | None:
        """Position by bucket of a consumer; None if there is none of that name, or it is a lease."""
        consumer = self.named.get(name)
        return None if consumer is None or consumer.until_ms is not None else dict(enumerate(consumer.offsets))

    def lasting(self) -> dict[str, dict[int, int]]:
        """Positions by name and bucket, without leases."""
        return {
            name: dict(enumerate(consumer.offsets))
            for name, consumer in sorted(self.named.items())
            if consumer.until_ms is None
        }

    def leases(self) -> dict[str, tuple[dict[int, int], int]]:
        """Leases: by name, the position by bucket, and when it expires (ms)."""
        return {
            name: (dict(enumerate(consumer.offsets)), consumer.until_ms)
            for name, consumer in sorted(self.named.items())
            if consumer.until_ms is not None
        }

    def reader_positions(self, bucket: BucketId, now_ms: int) -> list[Offset]:
        """Positions of all consumers in a bucket, without expired leases."""
        return [consumer.offsets[bucket] for consumer in self.named.values() if not consumer.is_over(now_ms)]

    def before(self, bucket: BucketId, offset: Offset) -> set[str]:
        """Names of consumers, without leases, whose position in a bucket is before an offset."""
        return {name for name, each in self.named.items() if each.until_ms is None and each.offsets[bucket] < offset}

    def after(self, edit: SetConsumer | DropConsumer, time_ms: int) -> TableConsumers:
        """The consumers after one more edit of this time (ms); dropping an unknown name does nothing."""
        kept = self.named.without_expired(time_ms)
        if isinstance(edit, DropConsumer):
            return TableConsumers(kept.without(edit.name))
        return TableConsumers(kept.put(edit.name, NamedConsumer(tuple(edit.offsets), edit.until_ms, edit.filter)))


NO_CONSUMERS = TableConsumers()


def moved_back(table: TableId, consumers: TableConsumers, ends: Mapping[int, int]) -> Iterator[SetConsumer]:
    """Edits that move the consumers of a table back to the ends of its buckets.

    A consumer after the end of a log would miss the changes that are appended next.

    Args:
        ends: The ends by bucket; in a bucket without an end no consumer moves.
    """
    for name, consumer in sorted(consumers.named.items()):
        offsets = [Offset(min(at, ends.get(bucket, at))) for bucket, at in enumerate(consumer.offsets)]
        if offsets != list(consumer.offsets):
            yield SetConsumer(
                table_id=table, name=name, offsets=offsets, until_ms=consumer.until_ms, filter=consumer.filter
            )
