"""How fast a log grew, and how far a reader lagged over time, from a few samples of the files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstore import Store, Table, browse_catalog
from kvstore.clock import time_text
from kvstore.console.drawing import curve
from kvstore.console.html import Html
from kvstore.console.table.definition import Definition
from kvstore.errors import CorruptData
from logformat.catalog import edits
from logformat.catalog.edits import SetConsumer
from logformat.ids import Offset

BINS = 40
SAMPLES = 40
BUCKETS_READ = 8
"""Of a table with more buckets, these are sampled, and the figures are of them."""
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


def growth_of(known_times: dict[Offset, int], end: Offset, last_ms: int) -> Growth:
    """Growth by the times at which batches came that begin at some offsets, the first of the log among them.

    Args:
        last_ms: Time of the last commit before the end of the log.
    """
    by_offset = {offset: time for offset, time in known_times.items() if offset < end} | {end: last_ms}
    places = list(map(int, by_offset))
    times = np.maximum.accumulate(list(by_offset.values())).tolist()
    ends = dict(zip(times, places, strict=True))  # of several at one time, the last
    return Growth([times[0] - 1, *ends], [places[0], *ends.values()])


def growths(table: Table, samples: int = SAMPLES) -> list[Growth]:
    """Samples of the logs of a table's first buckets, without empty ones.

    Raises:
        StoreError: A log can't be read.
    """
    ends = list(table.committed().items())[:BUCKETS_READ]
    samples_of = {bucket: table.bucket(bucket).log.commit_times(samples) for bucket, _ in ends}
    return [growth_of(samples_of[bucket], *end) for bucket, end in ends if samples_of[bucket]]


def rate_facts(of_buckets: list[Growth]) -> dict[str, Any] | None:
    """Changes in equal parts of the time since the first one kept; None if there are none."""
    if not of_buckets:
        return None
    first, last = min(each.times[0] for each in of_buckets), max(each.times[-1] for each in of_buckets)
    edges = np.linspace(first, last, BINS + 1)
    counts = np.sum([np.diff(each.at(edges)) for each in of_buckets], axis=0)
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
        self._positions = _positions(store)
        self._growths: dict[int, list[Growth]] = {}

    def facts(self, definition: Definition, name: str, now_ms: int) -> dict[str, Any] | None:
        """The lags of a consumer of a table; None if they are not known.

        Raises:
            StoreError: A log can't be read.
        """
        positions = self._positions.get((definition.id, name), [])
        if not positions or definition.buckets > BUCKETS_READ:
            return None
        if definition.id not in self._growths:
            self._growths[definition.id] = growths(definition.table)
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
        seconds = [round(float(each)) for each in lags]
        return {"from": time_text(int(first)), "to": time_text(int(times[-1])), "lags": seconds}


def lag_html(facts: dict[str, Any] | None) -> Html | None:
    """The lag as a curve."""
    if facts is None:
        return None
    lags = facts["lags"]
    words = f"Lag over time, {facts['from']} to {facts['to']}: at most {max(lags):,}, {lags[-1]:,} at the end"
    return curve(lags, words, "spark")


def _positions(store: Store) -> dict[tuple[int, str], list[tuple[int, list[Offset]]]]:
    """By table and consumer, when it committed which offsets, as far as the last edits of the catalog tell."""
    positions: dict[tuple[int, str], list[tuple[int, list[Offset]]]] = {}
    with browse_catalog(store.path) as catalog:
        stored = catalog.edits_after(max(store.txid - EDITS_READ, 0))
    for data in stored:
        try:
            edit = edits.decode(data)
        except CorruptData:
            continue  # the page of the catalog reports it
        if isinstance(edit.payload, SetConsumer):
            key = (edit.payload.table_id, edit.payload.name)
            positions.setdefault(key, []).append((edit.time_ms, edit.payload.offsets))
    return {key: sorted(each, key=lambda each: each[0]) for key, each in positions.items()}
