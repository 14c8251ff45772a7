"""Figures, how they are taken, and what is made of them.

The measured systems take turns, round by round, so that a machine that slows down slows all of them.
The first round only warms up. A figure is the median of its rounds, a ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from benchmarks.peers import Durability, KvStore, RawLimit, Store, peers
from benchmarks.rows import Shape

TURN_SECONDS_MAX = 3.0
KVSTORE = KvStore.name
NO_PEERS = frozenset({KVSTORE, RawLimit.name})


@dataclass(frozen=True)
class Setting:
    """What a work is measured with.

    Attributes:
        directory: Of its own; removed afterwards.
        rows: Of the tables, where a work does not take fewer.
        with_others: Whether peers and limits have their turns too, or kvstore alone.
    """

    directory: Path
    rows: int
    rounds: int
    with_others: bool = True

    def place(self, name: str) -> Path:
        """A new directory."""
        path = self.directory / name
        path.mkdir(parents=True)
        return path


@dataclass(frozen=True)
class Figure:
    """What one turn came to.

    Attributes:
        line: The work, as the tables call it.
        by: The system that did the work, or the variant.
        value: The more the better if ``unit`` is of a second.
    """

    line: str
    by: str
    value: float
    unit: str = "rows/s"


@dataclass
class Line:
    """All figures of one work.

    Attributes:
        figures: Figures by system, round by round.
        measured_on: A day, if it was not in this run.
    """

    name: str
    unit: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    measured_on: str | None = None

    def median(self, by: str) -> float:
        return statistics.median(self.figures[by])

    def ratio(self, by: str, other: str) -> float:
        """How many times that of another, in the same rounds."""
        pairs = zip(self.figures[by], self.figures[other], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def best_peer(self) -> str | None:
        found = [by for by in self.figures if by not in NO_PEERS]
        return max(found, key=self.median, default=None)


Lines = dict[str, Line]


def gathered(figures: Iterable[Figure], lines: Lines) -> Iterator[Figure]:
    """Put figures where they belong, and hand them on."""
    for figure in figures:
        line = lines.setdefault(figure.line, Line(figure.line, figure.unit))
        line.figures.setdefault(figure.by, []).append(figure.value)
        yield figure


Work = Callable[[Setting], Iterator[Figure]]


def in_turns(line: str, ways: dict[str, Callable[[], float]], rounds: int, unit: str = "rows/s") -> Iterator[Figure]:
    """Figures of some ways to do the same, round by round."""
    for number in range(rounds + 1):
        for name, way in ways.items():
            value = way()
            if number:
                yield Figure(line, name, value, unit)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def stores(setting: Setting, shape: Shape, durability: Durability) -> list[Store]:
    """kvstore, and if others are wanted its peers and the raw limit, each empty and in a place of its own."""
    makers: list[type[Store]] = [KvStore, *peers(durability), RawLimit] if setting.with_others else [KvStore]
    return [make(setting.place(f"{durability}-{nth}"), shape, durability) for nth, make in enumerate(makers)]


def rate(store: Store, batches: Sequence[pa.RecordBatch], seconds_max: float = TURN_SECONDS_MAX) -> float:
    """Rows a second, of as many of the batches as there is time for."""
    prepared = [store.prepare(batch) for batch in batches]
    rows, began = 0, time.perf_counter()
    for batch, each in zip(batches, prepared, strict=True):
        store.apply(each)
        rows += batch.num_rows
        if time.perf_counter() - began > seconds_max:
            break
    store.settle()
    return rows / (time.perf_counter() - began)


def rates(
    line: str, taking_turns: Sequence[Store], batches_of: Callable[[], Sequence[pa.RecordBatch]], rounds: int
) -> Iterator[Figure]:
    """Rows a second of stores that are all given the same batches, round by round."""
    for number in range(rounds + 1):
        batches = batches_of()
        for store in taking_turns:
            value = rate(store, batches)
            if number:
                yield Figure(line, store.name, value)


def fill(taking_turns: Sequence[Store], batches: Sequence[pa.RecordBatch], line: str, rounds: int) -> Iterator[Figure]:
    """Insert every row into every store: some for each round, and the first only to warm up."""
    each = -(-len(batches) // (rounds + 1))
    for first in range(0, len(batches), each):
        for store in taking_turns:
            value = rate(store, batches[first : first + each], float("inf"))
            if first:
                yield Figure(line, store.name, value)
