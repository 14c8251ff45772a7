"""New changes of a log, a few at a time, for a page that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kvstore.console.html import Html, tag, url
from kvstore.console.parts import error_box
from kvstore.console.query import Query
from kvstore.console.table.batches import batch_facts, batch_html
from kvstore.console.table.columns import chosen
from kvstore.console.table.stretch import OFFSETS_SHOWN, Filter, Reader, Stretch
from kvstore.errors import NoSuchTable
from kvstore.meta.state import TableDefinition
from kvstore.store.store import Store


@dataclass
class Tail:
    """What follows the end of a log.

    Attributes:
        at: The next offset to read.
        skipped: Offsets that the last step left out, because more came than a page shows.
    """

    id: int
    bucket: int
    filter: Filter
    query: Query
    at: int
    skipped: int = 0

    @classmethod
    def of(cls, store: Store, definition: TableDefinition, query: Query) -> Tail:
        """A tail from ``start`` on, an offset; from the end of the log if there is none, or the log ends before it.

        Raises:
            StoreError: The request is not possible.
        """
        chosen(definition, query)
        filter = Filter.of(definition, query)
        bucket = filter.bucket(definition)
        if bucket is None:
            bucket = query.number("bucket", most=definition.buckets - 1) or 0
        end = int(store.table(definition.name).offsets()[bucket][1])
        start = query.number("start")
        return cls(definition.id, bucket, filter, query, end if start is None else min(start, end))

    def step(self, store: Store) -> tuple[Stretch, TableDefinition] | None:
        """What has come since the last step, or the latest part of it; None if nothing has.

        Raises:
            StoreError: It can't be read, or the table was dropped.
        """
        definition = next((each for id, each in store.runtime.catalog().tables.items() if id == self.id), None)
        if definition is None:
            raise NoSuchTable("The table was dropped.", id=self.id)
        table = store.table(definition.name)
        ends = [int(end) for end, _ in table.committed().values()]
        end = ends[self.bucket]
        if end < self.at:  # another store is in the place of the one before
            self.at = end
        if end == self.at:
            return None
        log_start = table.bucket(self.bucket).log.start()
        most = end if self.filter else OFFSETS_SHOWN
        found = Stretch(max(self.at, log_start, end - most), end, log_start, end, ends)
        names, _ = chosen(definition, self.query)
        reader = Reader(store, definition, self.bucket, names, self.filter)
        if self.filter:
            reader.backward(found)
        else:
            reader.forward(found)
        self.skipped = found.start - self.at
        self.at = found.stop
        return found, definition

    def as_json(self, found: Stretch, _: TableDefinition) -> str:
        """The changes of a step."""
        facts: dict[str, Any] = {"start": found.start, "end": found.stop, "skipped": self.skipped}
        facts["batches"] = [batch_facts(each) for each in found.batches]
        return msgspec.json.encode(facts | (found.error or {})).decode()

    def as_html(self, found: Stretch, definition: TableDefinition) -> str:
        """The changes of a step as a part of a page."""
        where = url(f"/tables/{definition.id}/changes", bucket=self.bucket, start=found.start - self.skipped)
        note: Html | None = None
        if self.skipped:
            note = tag("p", f"{self.skipped:,} offsets came that are not shown: ", tag("a", "see them", href=where))
        batches = [batch_html(each, definition, self.bucket, found) for each in found.batches]
        error = None if found.error is None else error_box(found.error)
        return "".join(each.source for each in (note, *batches, error) if each is not None)
