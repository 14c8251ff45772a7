"""A disk that takes only a part of a write: nothing acknowledged is lost, and once there is space the store goes on.

The limit is RLIMIT_FSIZE, put on while one batch is written whose segment has to be rolled, and taken off again.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.conftest import Tell
from tests.crash.explore import Explorer, on_disk, record
from tests.crash.history import Marks, Window
from tests.crash.judges import Judges
from tests.crash.recorder import Order, Recorder
from tests.crash.states import State
from tests.crash.vfs import Contents, Disk
from tests.crash.workload import MARKS, STORE, Script
from tests.support.proof import Proves
from tests.support.rolling import ROLLING, rolling

HEAD_BYTES, SPARSE_INDEX_BYTES = 64, 40
QUICK_LIMITS_MIN = 20
LOG = f"{STORE}/tables/1/0/log"


def run(limit: int | None, plan: Script, work: Path, recorder: Recorder) -> Contents:
    directory = Path(tempfile.mkdtemp(dir=work))
    squeeze = None if limit is None else (ROLLING, limit)
    trace = recorder.run(Order("run", directory, replace(plan, squeeze=squeeze), traced=False))
    contents = on_disk(directory)
    assert trace.status == 0, f"limit {limit}: {contents[MARKS]!r}"
    return contents


def boundaries(contents: Contents) -> set[int]:
    """Sizes at which a file of the roll begins or ends, and batches around it."""
    sizes = {len(data) for name, data in contents.items() if name.startswith(LOG) and data is not None}
    full = max(sizes)
    return {0, 1, SPARSE_INDEX_BYTES, HEAD_BYTES, 512, 4096, 8192, full - 64, *sizes, *range(160, 1100, 320)}


def squeeze_at(
    limits: Iterable[int], work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves
) -> None:
    plan = rolling()
    explorer = Explorer(plan, work, judges)
    done = len(plan.steps)
    segments: Counter[int] = Counter()
    count = 0
    for limit in limits:
        contents = run(limit, plan, work, recorder)
        segments[sum(name.endswith(".log") for name in contents)] += 1
        explorer.see(State(None, "short", contents), Window(done, done), limit)
        count += 1
    explorer.finish()
    tell(f"{count} limits; segments left: {dict(segments)}", *explorer.report.lines())
    assert not explorer.report.bad, "\n".join(map(str, explorer.report.bad[:5]))
    assert count >= QUICK_LIMITS_MIN
    proves("partial-write bytes", count)


def test_the_step_that_is_squeezed_rolls(work: Path, recorder: Recorder) -> None:
    plan = rolling()
    directory, trace = record(recorder, plan, work)
    disk, marks = Disk(str(directory)), Marks(plan)
    created = []
    for call in trace.calls:
        disk.run(call)
        marks.run(call, disk)
        if call.kind == "rename" and call.other_path.endswith(".log"):
            created.append(marks.window)
    assert created == [Window(1, 2), Window(ROLLING, ROLLING + 1)]


def test_short_writes(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    free = run(None, rolling(), work, recorder)
    assert sum(name.endswith(".log") for name in free) == 2
    limits = {max(0, size + by) for size in boundaries(free) for by in (-1, 0)}
    squeeze_at(sorted(limits), work, recorder, judges, tell, proves)


@pytest.mark.long
def test_short_writes_at_every_byte(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    free = run(None, rolling(), work, recorder)
    largest = max(len(data) for name, data in free.items() if name.startswith(LOG) and data is not None)
    squeeze_at(range(largest + 2), work, recorder, judges, tell, proves)
