"""New changes of a log, a few at a time, for a page that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kvstore import Store
from kvstore.console.html import Html, tag, url
from kvstore.console.parts import error_box
from kvstore.console.query import Query
from kvstore.console.table.batches import batch_facts, batch_html
from kvstore.console.table.columns import chosen
from kvstore.console.table.definition import Definition
from kvstore.console.table.stretch import OFFSETS_SHOWN, Filter, Reader, Stretch


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
    def of(cls, _: Store, definition: Definition, query: Query) -> Tail:
        """A tail from ``start`` on, an offset; from the end of the log if there is none, or the log ends before it.

        Raises:
            StoreError: The request is not possible.
        """
        chosen(definition, query)
        filter = Filter.of(definition, query)
        bucket = filter.bucket(definition)
        if bucket is None:
            bucket = query.number("bucket", most=definition.buckets - 1) or 0
        end = int(definition.table.offsets()[bucket][1])
        start = query.number("start")
        return cls(definition.id, bucket, filter, query, end if start is None else min(start, end))

    def step(self, store: Store) -> tuple[Stretch, Definition] | None:
        """What has come since the last step, or the latest part of it; None if nothing has.

        Raises:
            StoreError: It can't be read, or the table was dropped.
        """
        definition = Definition.of(store.table_by_id(self.id))
        table = definition.table
        ends = [int(end) for end, _ in table.committed().values()]
        end = ends[self.bucket]
        if end < self.at:  # another store is in the place of the one before
            self.at = end
        if end == self.at:
            return None
        log_start = table.bucket(self.bucket).log.start()
        most = end if self.filter else OFFSETS_SHOWN
        stretch = Stretch(max(self.at, log_start, end - most), end, log_start, end, ends)
        names, _ = chosen(definition, self.query)
        reader = Reader(definition, self.bucket, names, self.filter)
        if self.filter:
            reader.backward(stretch)
        else:
            reader.forward(stretch)
        self.skipped = stretch.start - self.at
        self.at = stretch.stop
        return stretch, definition

    def as_json(self, stretch: Stretch, _: Definition) -> str:
        """The changes of a step."""
        facts: dict[str, Any] = {"start": stretch.start, "end": stretch.stop, "skipped": self.skipped}
        facts["batches"] = [batch_facts(each) for each in stretch.batches]
        return msgspec.json.encode(facts | (stretch.error or {})).decode()

    def as_html(self, stretch: Stretch, definition: Definition) -> str:
        """The changes of a step as a part of a page."""
        where = url(f"/tables/{definition.id}/changes", bucket=self.bucket, start=stretch.start - self.skipped)
        note: Html | None = None
        if self.skipped:
            note = tag("p", f"{self.skipped:,} offsets came that are not shown: ", tag("a", "see them", href=where))
        batches = [batch_html(each, definition, self.bucket, stretch) for each in stretch.batches]
        error = None if stretch.error is None else error_box(stretch.error)
        return "".join(each.source for each in (note, *batches, error) if each is not None)
