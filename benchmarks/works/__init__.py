"""What is measured: each module yields figures, turn by turn.

kvstore's part of each can be measured alone, which is how one version is held against another.
"""

from __future__ import annotations

from benchmarks.measuring import Work
from benchmarks.works import (
    backups,
    changes,
    disk,
    engines,
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
    transactions,
    updates,
    waking,
    wal,
    writes,
)

WORKS: dict[str, Work] = {
    "writes": writes.figures,
    "relaxed": writes.relaxed_figures,
    "wal": wal.figures,
    "keys": keys.figures,
    "shapes": shapes.figures,
    "small": small.figures,
    "updates": updates.figures,
    "engines": engines.figures,
    "reads": reads.figures,
    "increments": increments.figures,
    "transactions": transactions.figures,
    "gets": gets.figures,
    "lookups": lookups.figures,
    "ranges": ranges.figures,
    "changes": changes.figures,
    "recovery": recovery.figures,
    "disk": disk.figures,
    "processes": processes.figures,
    "waking": waking.figures,
    "backups": backups.figures,
}
"""By the name that ``--only`` takes."""
