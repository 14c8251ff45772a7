"""Scripts of crash tests whose logs begin new segments."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.scripts import script
from tests.crash.workload import Script, Step

ROLLING = 11
"""The step that rolls; the settings below see to it, and a test that they do."""


def rolling() -> Script:
    """A step for each batch of one row; the segment is full before step ``ROLLING``."""
    rows = [{"k": number % 3, "v": number, "s": "x" * 40} for number in range(14)]
    batches = [Step("batch", operations=(("upsert", row),), writer=0, number=number) for number, row in enumerate(rows)]
    plan = script(0, 0, retries=3, segment_bytes_max=4400)
    return replace(plan, steps=(Step("open"), Step("create", number=1), *batches, Step("flush"), Step("reopen")))
