"""How fast a log grew, and how far a reader lagged over time, from a few samples of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstore.clock import time_text
from kvstore.console.drawing import curve
from kvstore.console.html import Html
from kvstore.errors import CorruptData
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.store.store import Store
from logformat.catalog import edits
from logformat.catalog.edits import SetConsumer
from logformat.ids import Offset, Position, TableId, Txid
from logformat.log.segment import HEAD_BYTES

BINS = 40
SAMPLES = 40
BUCKETS_READ = 8
"""Of a table with more buckets, these are sampled, and the figures are of them."""
PROBED_BYTES = 4 << 20
"""A log up to this size is sampled at any offset; a larger one only where its files list batches."""
EDITS_READ = 2_000
"""The last edits of the catalog in which positions of consumers are looked for."""


@dataclass(frozen=True)
class Growth:
    """The end of a log at some times, which do not decrease."""

    times: list[int]
    ends: list[int]

    def at(self, times: np.ndarray) -> np.ndarray:
        """The end at other times (ms), between two samples as if it had grown evenly."""
        return np.interp(times, self.times, self.ends)


def growth_of(log: LogFiles, end: Offset, last_ms: int, samples: int = SAMPLES) -> Growth | None:
    """Samples of a log up to an offset; None if it is empty.

    Args:
        last_ms: Time of the last commit before the end.

    Raises:
        StoreError: A batch is damaged.
    """
    start = log.start()
    if start >= end:
        return None
    bases = [base for base in log.bases() if base < end]
    found = {}
    for base in _some(bases, samples):
        found[int(base)] = log.segment(base).batch_at(Position(HEAD_BYTES), base).header.commit_timestamp
    for base in bases[-2:] if len(found) < samples else []:
        entries = [each for each in log.segment(base).sparse_index() if start < each.offset < end]
        found |= {int(each.offset): each.timestamp for each in _some(entries, samples)}
    if len(found) < samples and log.bytes_between(start, end) <= PROBED_BYTES:
        for offset in np.unique(np.linspace(start, end - 1, samples).astype(np.int64)).tolist():
            header = next(log.batches(Offset(offset), Offset(offset + 1))).header
            found[max(header.base_offset, start)] = header.commit_timestamp
    return _curve({**found, int(end): last_ms}, int(start))


def _curve(found: dict[int, int], start: int) -> Growth:
    """Growth by the times at which batches came that begin at some offsets."""
    places = sorted(found)
    times = np.maximum.accumulate([found[place] for place in places]).tolist()
    ends = dict(zip(times, places, strict=True))  # of several at one time, the last
    return Growth([times[0] - 1, *ends], [start, *ends.values()])


def _some(given: Sequence[Any], most: int) -> list[Any]:
    if len(given) <= most:
        return list(given)
    return [given[int(place)] for place in np.linspace(0, len(given) - 1, most)]


def growths(store: Store, definition: TableDefinition, samples: int = SAMPLES) -> list[Growth]:
    """Samples of the logs of a table's first buckets.

    Raises:
        StoreError: A log can't be read.
    """
    table = store.table(definition.name)
    found = []
    for bucket, (end, last_ms) in list(table.committed().items())[:BUCKETS_READ]:
        growth = growth_of(table.bucket(bucket).log, end, last_ms, samples)
        if growth is not None:
            found.append(growth)
    return found


def rate_facts(found: list[Growth]) -> dict[str, Any] | None:
    """Changes in equal parts of the time since the first one kept; None if there are none."""
    if not found:
        return None
    first, last = min(each.times[0] for each in found), max(each.times[-1] for each in found)
    edges = np.linspace(first, last, BINS + 1)
    counts = np.sum([np.diff(each.at(edges)) for each in found], axis=0)
    return {
        "from": time_text(first),
        "to": time_text(last),
        "part_ms": (last - first) / BINS,
        "changes": [round(float(each), 3) for each in counts],
    }


def rate_html(facts: dict[str, Any] | None, kind: str = "spark") -> Html | None:
    """The rate as a curve."""
    if facts is None:
        return None
    words = (
        f"Changes over time, {facts['from']} to {facts['to']}: at most {max(facts['changes']):,.0f} in one of {BINS}"
    )
    return curve(facts["changes"], f"{words} parts of it", kind)


class Lags:
    """How many changes consumers had yet to read, over the time of their last commits.

    Made for one page: it reads the last edits of the catalog, and samples of a log, once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._positions = _positions(store)
        self._growths: dict[TableId, list[Growth]] = {}

    def facts(self, definition: TableDefinition, name: str, now_ms: int) -> dict[str, Any] | None:
        """The lags of a consumer of a table; None if they are not known.

        Raises:
            StoreError: A log can't be read.
        """
        positions = self._positions.get((definition.id, name), [])
        if not positions or definition.buckets > BUCKETS_READ:
            return None
        if definition.id not in self._growths:
            self._growths[definition.id] = growths(self._store, definition)
        logs = self._growths[definition.id]
        if len(logs) != definition.buckets:
            return None
        first = positions[0][0]
        times = np.linspace(first, max(now_ms, first + 1), BINS + 1)
        places = np.searchsorted([time for time, _ in positions], times, side="right") - 1
        lags = np.zeros(len(times))
        for bucket, growth in enumerate(logs):
            offsets = np.array([offsets[bucket] for _, offsets in positions])
            lags += np.maximum(growth.at(times) - offsets[places], 0)
        found = [round(float(each)) for each in lags]
        return {"from": time_text(int(first)), "to": time_text(int(times[-1])), "lags": found}


def lag_html(facts: dict[str, Any] | None) -> Html | None:
    """The lag as a curve."""
    if facts is None:
        return None
    lags = facts["lags"]
    words = f"Lag over time, {facts['from']} to {facts['to']}: at most {max(lags):,}, {lags[-1]:,} at the end"
    return curve(lags, words, "spark")


def _positions(store: Store) -> dict[tuple[TableId, str], list[tuple[int, list[Offset]]]]:
    """By table and consumer, when it committed which offsets, as far as the last edits of the catalog tell."""
    journal = store.runtime.journal
    since = max(store.runtime.catalog().txid - EDITS_READ, 0)
    found = journal.edits_after(Txid(since))
    if found is None:  # the journal begins later
        begin = journal.segments()
        found = journal.edits_after(Txid(begin[0] - 1)) if begin else None
    positions: dict[tuple[TableId, str], list[tuple[int, list[Offset]]]] = {}
    for data in found or []:
        try:
            edit = edits.decode(data)
        except CorruptData:
            continue  # the page of the catalog reports it
        if isinstance(edit.payload, SetConsumer):
            key = (edit.payload.table_id, edit.payload.name)
            positions.setdefault(key, []).append((edit.time_ms, edit.payload.offsets))
    return {key: sorted(each, key=lambda each: each[0]) for key, each in positions.items()}
