"""A disk that takes only a part of a write: nothing acknowledged is lost, and once there is space the store goes on.

The limit is RLIMIT_FSIZE, put on while one batch is written whose segment has to be rolled, and taken off again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.crash.explore import Lab, on_disk
from tests.crash.history import Marks, Window
from tests.crash.recorder import Order
from tests.crash.states import State
from tests.crash.vfs import Contents, Disk
from tests.crash.workload import MARKS, STORE
from tests.support.rolling import ROLLING, rolling

HEAD_BYTES, SPARSE_INDEX_BYTES = 64, 40
QUICK_LIMITS_MIN = 20
LOG = f"{STORE}/tables/1/0/log"


def run(lab: Lab, limit: int | None) -> Contents:
    directory = lab.directory()
    squeeze = None if limit is None else (ROLLING, limit)
    trace = lab.recorder.run(Order("run", directory, replace(rolling(), squeeze=squeeze), traced=False))
    contents = on_disk(directory)
    assert trace.status == 0, f"limit {limit}: {contents[MARKS]!r}"
    return contents


def boundaries(contents: Contents) -> set[int]:
    """Sizes at which a file of the roll begins or ends, and batches around it."""
    sizes = {len(data) for name, data in contents.items() if name.startswith(LOG) and data is not None}
    full = max(sizes)
    return {0, 1, SPARSE_INDEX_BYTES, HEAD_BYTES, 512, 4096, 8192, full - 64, *sizes, *range(160, 1100, 320)}


def squeeze_at(lab: Lab, limits: Sequence[int]) -> None:
    segments: Counter[int] = Counter()

    def states() -> Iterator[State]:
        for limit in limits:
            contents = run(lab, limit)
            segments[sum(name.endswith(".log") for name in contents)] += 1
            yield State(None, "short", contents)

    report = lab.explorer(rolling()).judged(states())
    lab.tell(f"{len(limits)} limits; segments left: {dict(segments)}", *report.lines())
    report.assert_good()
    assert len(limits) >= QUICK_LIMITS_MIN
    lab.proves("partial-write bytes", len(limits))


def test_the_step_that_is_squeezed_rolls(lab: Lab) -> None:
    plan = rolling()
    directory, trace = lab.record(plan)
    disk, marks = Disk(str(directory)), Marks(plan)
    created = []
    for call in trace.calls:
        disk.run(call)
        marks.run(call, disk)
        if call.kind == "rename" and call.other_path.endswith(".log"):
            created.append(marks.window)
    assert created == [Window(1, 2), Window(ROLLING, ROLLING + 1)]


def test_short_writes(lab: Lab) -> None:
    free = run(lab, None)
    assert sum(name.endswith(".log") for name in free) == 2
    squeeze_at(lab, sorted({max(0, size + by) for size in boundaries(free) for by in (-1, 0)}))


@pytest.mark.long
def test_short_writes_at_every_byte(lab: Lab) -> None:
    free = run(lab, None)
    largest = max(len(data) for name, data in free.items() if name.startswith(LOG) and data is not None)
    squeeze_at(lab, range(largest + 2))
