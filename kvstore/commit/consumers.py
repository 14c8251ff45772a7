"""Registered readers of a table's log: changes that they have yet to read do not expire.

* The log is kept from an offset on as soon as the catalog has the offset. The transaction that registers it checks that
  the log has it, and retention removes no segment during a transaction: so the log keeps every registered offset.
* A consumer keeps its last committed position until it is dropped; a lease ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import ge
from typing import Any, Literal, NamedTuple

from kvstore.arguments import integer, printable, shown
from kvstore.bucket.handle import BucketHandle
from kvstore.clock import Clock
from kvstore.commit.named_writers import NAME_BYTES_MAX
from kvstore.errors import InvalidRequest, NoSuchTable, OffsetOutOfRange, StoreFull, UnsupportedOperation
from kvstore.log.retention import can_expire
from kvstore.meta.consumers import NamedConsumer, TableConsumers
from kvstore.meta.state import CatalogState
from kvstore.meta.table_catalog import TableCatalog
from kvstore.options import StoreOptions
from logformat.catalog.edits import SetConsumer
from logformat.ids import OFFSET_MAX, Offset

LEASE_SECONDS = 3600
"""How long a lease lasts; a reader that is still reading renews it."""


class Consumers:
    """Registered readers of one table."""

    def __init__(
        self, handles: Sequence[BucketHandle], catalog: TableCatalog, options: StoreOptions, clock: Clock
    ) -> None:
        self._table = catalog.table
        self._handles = handles
        self._catalog = catalog
        self._journal = catalog.journal
        self._options = options
        self._clock = clock

    def lasting(self) -> dict[str, dict[int, int]]:
        """The next offset to read, for each bucket, of each consumer; without leases."""
        return self._known(self._journal.state()).lasting()

    def position(self, name: str) -> dict[int, int] | None:
        """The next offset to read of each bucket of one consumer; None if there is none of that name."""
        return self._known(self._journal.state()).position(name)

    def filter_of(self, name: str) -> str | None:
        """The filter that a subscription reads with under a name; None if that is not known."""
        known = self._known(self._journal.state()).named.get(name)
        return None if known is None else known.filter

    def put(self, name: str, offsets: Any, filter: str | None = None) -> None:
        """See :meth:`Consumer.commit`.

        Args:
            filter: That of a subscription; None for the one that is known.
        """
        given = self._offsets_given(offsets)
        self._check_ends(given)
        self._put(name, given, None, "refused", filter)

    def hold(self, name: str, offsets: Mapping[int, int]) -> None:
        """Like :meth:`put`, for offsets that a reader keeps elsewhere; what has expired since is left out.

        That reader gets an error then.
        """
        self._put(name, self._offsets_given(offsets), None, "left out")

    def move(self, name: str, offsets: Mapping[int, int], filter: str, *, is_named: bool) -> None:
        """Like :meth:`put`, for a reader that keeps its position here only: it never passes what was not read.

        Changes after it may have expired; the next reader of the name gets an error then.

        Args:
            is_named: Whether the name has had a position before, and is to have it still.
        """
        self._put(name, self._offsets_given(offsets), None, "kept", filter, is_named=is_named)

    def lease(self, name: str, offsets: Mapping[int, int]) -> None:
        """Hold what the log has from these offsets on for ``LEASE_SECONDS``, if it ever expires.

        If nothing can be written, this does nothing and raises no error.
        """
        if not self._expires():
            return
        if name in self.lasting():
            return  # of another reader of this name: a lease would end it
        until = self._clock.now_ms() + 1000 * LEASE_SECONDS
        with suppress(UnsupportedOperation, StoreFull):
            self._put(name, self._offsets_given(offsets), until, "left out")

    def _expires(self) -> bool:
        if can_expire(self._catalog.definition().options.retention_ms, self._options.log_bytes_max):
            return True
        # Only the writing process knows a limit by size; others see that there is one once it has taken effect.
        return any(handle.log.start() for handle in self._handles)

    def _put(
        self,
        name: str,
        offsets: Sequence[Offset],
        until_ms: int | None,
        expired: Literal["refused", "kept", "left out"],
        filter: str | None = None,
        *,
        is_named: bool = False,
    ) -> None:
        """Register offsets.

        Args:
            expired: What is done with those before the log's start: it may take their place.
        """
        known = self._known(self._journal.state()).named.get(name)
        filter = self.filter_of(name) if filter is None else filter
        if until_ms is None and known == NamedConsumer(tuple(offsets), filter=filter):
            return  # it is registered already, so the log has it

        def decide(state: CatalogState) -> SetConsumer:
            if self._known(state).named.get(name) is None and is_named:
                raise InvalidRequest(
                    "The name of this subscription was given up by `drop_consumer`; nothing was acknowledged. "
                    "Subscribe again to read on under it.",
                    name=name,
                )
            starts = [handle.log.start() for handle in self._handles]
            for bucket, (offset, start) in enumerate(zip(offsets, starts, strict=True)):
                if expired == "refused" and offset < start:
                    raise OffsetOutOfRange(
                        "The log has expired up to a later offset; go on at `log_start` without the changes between, "
                        "or read the whole table again.",
                        table=state.tables[self._table].name,
                        bucket=bucket,
                        offset=offset,
                        log_start=start,
                    )
            held = list(map(max, offsets, starts)) if expired == "left out" else list(offsets)
            return SetConsumer(table_id=self._table, name=name, offsets=held, until_ms=until_ms, filter=filter)

        # If the edit is lost, the log keeps more than necessary.
        is_same = known is not None and (known.until_ms, known.filter) == (until_ms, filter)
        goes_on = known is not None and is_same and all(map(ge, offsets, known.offsets))
        self._journal.append(decide, may_wait=goes_on)

    def _known(self, state: CatalogState) -> TableConsumers:
        if self._table not in state.tables:
            raise NoSuchTable("The table was dropped.", table_id=self._table)
        return state.consumers_of(self._table)

    def _offsets_given(self, given: Any) -> list[Offset]:
        if not isinstance(given, Mapping) or set(given) != set(range(len(self._handles))):
            raise InvalidRequest(
                "Give the next offset to read, for each bucket of the table: {0: 17, …}.",
                offsets=shown(given),
                buckets=len(self._handles),
            )
        offsets = [integer("offset", given[bucket]) for bucket in range(len(self._handles))]
        if not all(0 <= offset <= OFFSET_MAX for offset in offsets):
            raise OffsetOutOfRange("No log has such an offset; give one of its changes.", offsets=shown(given))
        return [Offset(offset) for offset in offsets]

    def _check_ends(self, offsets: Sequence[Offset]) -> None:
        for bucket, (offset, handle) in enumerate(zip(offsets, self._handles, strict=True)):
            end = handle.committed().applied_offset
            if end < offset:
                handle.flush()  # it may be acknowledged here, and not yet committed
                end = handle.committed().applied_offset
            if end < offset:
                raise OffsetOutOfRange(
                    "The log ends before this offset; give the one after the last change that was read.",
                    table=self._catalog.definition().name,
                    bucket=bucket,
                    offset=offset,
                    log_end=end,
                )


class Lease(NamedTuple):
    """A reader that is registered for a while, such as a query that runs; see :attr:`kvstore.Store.leases`.

    Attributes:
        offsets: For each bucket, the offset from which on the log is kept.
        until_ms: When that ends, in milliseconds since the Unix epoch.
        is_over: Whether it had ended, by the clock of the store.
    """

    offsets: dict[int, int]
    until_ms: int
    is_over: bool


class Consumer:
    """A registered reader of changes: changes after its committed position do not expire.

    Made by :meth:`kvstore.Store.consumer`; it may be used from any thread.

    Args:
        of_table: Returns the consumers of a table by name; raises if there is no such table, or the store was closed.
        check_registers: Raises if the store was opened read-only.
    """

    def __init__(self, name: str, of_table: Callable[[str], Consumers], check_registers: Callable[[], None]) -> None:
        self._name = consumer_name(name)
        self._of_table = of_table
        self._check_registers = check_registers

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def position(self, table: str) -> dict[int, int] | None:
        """Next offset to read, for each bucket of a table, as last committed; None if none was committed.

        Raises:
            NoSuchTable: There is no table of that name.
        """
        return self._of_table(table).position(self._name)

    def commit(self, table: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offsets to read. The position is durable on return, and visible to every process.

        Changes from there on do not expire, whatever the table's ``retention`` and ``log_bytes_max``, until the
        position moves or the consumer is dropped with :meth:`kvstore.Store.drop_consumer`. It may move back as far as
        the log reaches.

        Args:
            offsets: For each bucket of the table the offset after the last change that was read; the first or the last
                of :meth:`kvstore.Table.offsets` to begin with.

        Raises:
            NoSuchTable: There is no table of that name.
            InvalidRequest: ``offsets`` lacks a bucket. The position is unchanged.
            OffsetOutOfRange: The log does not hold an offset: it has expired, or is not reached yet. The position is
                unchanged.
            UnsupportedOperation: The store was opened read-only, or its files may only be read.
            StoreFull: No space. The position is unchanged.
        """
        self._check_registers()
        self._of_table(table).put(self._name, offsets)


def consumer_name(given: Any) -> str:
    """Verify the name of a consumer.

    Raises:
        InvalidRequest: It is not a possible name.
    """
    return printable("consumer", given, NAME_BYTES_MAX)
