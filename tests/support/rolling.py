"""Scripts of crash tests whose logs begin new segments."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.workload import Script, Step, script

ROLLING = 11
"""The step that rolls; the settings below see to it, and a test that they do."""


def rolling() -> Script:
    """A step for each batch of one row; the segment is full before step ``ROLLING``."""
    batches = tuple(
        Step("batch", (("upsert", {"k": number % 3, "v": number, "s": "x" * 40}),), 0, number) for number in range(14)
    )
    plan = script(0, 0, retries=3, segment_bytes_max=4400)
    return replace(plan, steps=(Step("open"), Step("table"), *batches, Step("flush"), Step("reopen")))
