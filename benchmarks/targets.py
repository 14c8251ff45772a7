"""What kvstore is to reach, as a table: of each run, what it did reach.

A target is of one figure, or of its ratio to another in the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import growth_results
from benchmarks.measuring import KVSTORE, Line, Lines
from benchmarks.peers import LmdbByHand, RawLimit, RocksDict, Sqlite
from benchmarks.rows import COMPOSITE_KEYS, STRING_KEYS
from benchmarks.works import (
    backups,
    changes,
    disk,
    gets,
    increments,
    keys,
    lookups,
    processes,
    ranges,
    reads,
    recovery,
    shapes,
    small,
    updates,
    waking,
    wal,
    writes,
)

BEST_PEER = "best peer"
RAW_LIMIT = RawLimit.name


@dataclass(frozen=True)
class Target:
    """What one line is to reach.

    Attributes:
        bound: Of the ratio, or of the figure itself if there is nothing it is held against.
        against: Whose figure of the same line, or of ``against_line``.
        at_most: Whether the bound is one from above.
    """

    line: str
    bound: float
    against: str | None = None
    by: str = KVSTORE
    against_line: str | None = None
    at_most: bool = False

    def shown(self, unit: str) -> str:
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {self.bound:g}" if self.against else f"{sign} {shown(self.bound, unit)}"


TARGETS = [
    Target(writes.UPDATE_50K, 3, BEST_PEER),
    Target(writes.UPDATE_50K, 0.7, RAW_LIMIT),
    Target(writes.INSERT, 2, BEST_PEER),
    Target(writes.UPDATE_1K, 2.5, BEST_PEER),
    Target(writes.UPDATE_100, 2, BEST_PEER),
    Target(wal.WAL_UPDATE, 0.75, RAW_LIMIT),
    Target(keys.KEYS, 0.7, keys.INT64, STRING_KEYS.name),
    Target(keys.KEYS, 0.7, keys.INT64, COMPOSITE_KEYS.name),
    Target(shapes.WIDE_UPDATE, 1, BEST_PEER),
    Target(shapes.NESTED_UPDATE, 1, BEST_PEER),
    Target(small.CPU_ONE_UNSYNCED, 150, at_most=True),
    Target(small.CPU_ONE_UNSYNCED, 0.2, small.LONG_WAY, at_most=True),
    Target(small.CPU_TEN_UNSYNCED, 0.33, small.LONG_WAY, at_most=True),
    Target(updates.CPU_ONE, 1.25, Sqlite.name, at_most=True),
    Target(updates.CPU_TEN, 1.25, RocksDict.name, at_most=True),
    Target(updates.CPU_HUNDRED, 0.5, RocksDict.name, at_most=True),
    Target(updates.CPU_THOUSAND, 0.285, RocksDict.name, at_most=True),
    Target(updates.CPU_50K, 0.2, LmdbByHand.name, at_most=True),
    Target(reads.GET, 1.4, Sqlite.name),
    *(Target(gets.line_of(shape), 1.4, Sqlite.name) for shape in gets.SHAPES),
    *(Target(ranges.range_line_of(shape.name, of="wall"), 1, Sqlite.name) for shape in ranges.SHAPES),
    Target(increments.LINE, 0.8, Sqlite.name),
    Target(lookups.NARROW_LINE, 2, lookups.WITHOUT),
    Target(reads.LOOKUP, 1_000_000),
    Target(reads.SCAN, 3_000_000),
    Target(reads.PROJECTION, 1.3, KVSTORE, against_line=reads.SCAN),
    Target(changes.CHANGELOG, 0.8, changes.PLAIN),
    Target(recovery.RECOVERY, 1.5, recovery.UPDATE),
    Target(recovery.OPEN_SMALL, 50, at_most=True),
    Target(recovery.OPEN_LARGE, 50, at_most=True),
    Target(growth_results.UPDATE_20M, 1, BEST_PEER),
    Target(growth_results.UPDATE_50M, 1, BEST_PEER),
    Target(disk.LOG_BYTES, 2, disk.PARQUET, disk.ZSTD, at_most=True),
    Target(growth_results.MEMORY, 1.5, at_most=True),
    Target(processes.TWO_BUCKETS, 1.6, processes.ONE, processes.TWO),
    Target(processes.SEEN_MEDIAN, 2, at_most=True),
    Target(processes.SEEN_P99, 5, at_most=True),
    Target(waking.WOKEN_MEDIAN, 2, at_most=True),
    Target(waking.WOKEN_P99, 5, at_most=True),
    Target(waking.ONE, 0.1, at_most=True),
    Target(waking.ONE, 0.1, by=waking.IN_ASYNCIO, at_most=True),
    Target(waking.HUNDRED, 2, at_most=True),
    Target(waking.HUNDRED, 2, by=waking.IN_ASYNCIO, at_most=True),
    Target(processes.FIRST_GET_TIME, 300, at_most=True),
    Target(processes.FIRST_GET_MEMORY, 128, at_most=True),
    Target(backups.LINE, 0.5, Sqlite.name),
    Target(backups.WRITER.format(KVSTORE), 0.8, backups.ALONE, backups.BESIDE),
]


@dataclass(frozen=True)
class Outcome:
    """How far a target was reached; figures are None where there are none."""

    target: Target
    line: Line
    figure: float
    best_peer: tuple[str, float] | None
    raw_limit: float | None
    against: tuple[str, float] | None
    ratio: float | None

    @property
    def holds(self) -> bool:
        value = self.figure if self.ratio is None else self.ratio
        return value <= self.target.bound if self.target.at_most else value >= self.target.bound


def outcomes(lines: Lines) -> Iterator[Outcome]:
    """Outcomes of the targets whose figures are there."""
    for target in TARGETS:
        line = lines.get(target.line)
        other = lines.get(target.against_line or target.line)
        if line is None or other is None or target.by not in line.figures:
            continue
        peer = line.best_peer() if target.against == BEST_PEER or RAW_LIMIT in line.figures else None
        against = peer if target.against == BEST_PEER else target.against
        if target.against and (against is None or against not in other.figures):
            continue
        pairs = Line("", "", {"": line.figures[target.by], "other": other.figures[against]}) if against else None
        yield Outcome(
            target,
            line,
            line.median(target.by),
            (peer, line.median(peer)) if peer else None,
            line.median(RAW_LIMIT) if RAW_LIMIT in line.figures else None,
            (against, other.median(against)) if against else None,
            pairs.ratio("", "other") if pairs else None,
        )


def shown(value: float, unit: str) -> str:
    """A figure as people read it."""
    number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{number} {unit}"
