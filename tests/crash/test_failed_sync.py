"""A sync that fails drops what waited for it, for good: nothing that was acknowledged may have been among it."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.conftest import Tell
from tests.crash.explore import Explorer, Limits, record
from tests.crash.judges import Judges
from tests.crash.recorder import Recorder
from tests.crash.scripts import script
from tests.crash.trace import Plan
from tests.crash.workload import REFUSED
from tests.support.proof import Proves

QUICK_SYNCS = 2
FOR_EVER = 10_000
LENGTHS = (1, 2, FOR_EVER)


def fail(
    syncs_max: int | None,
    limits: Limits,
    work: Path,
    recorder: Recorder,
    judges: Judges,
    tell: Tell,
    proves: Proves,
) -> None:
    plan = script(21, 6, numbered=True, retries=3)
    _, whole = record(recorder, plan, work)
    count = sum(call.kind == "sync" for call in whole.calls)
    step = 1 if syncs_max is None else -(-count // syncs_max)
    explorer = Explorer(plan, work, judges)
    ended: Counter[str] = Counter()
    for first in range(0, count, step):
        for length in LENGTHS:
            failing = frozenset(range(first, first + length))
            directory, trace = record(recorder, plan, work, plan=Plan(fail_sync=failing))
            failed = [call for call in trace.calls if call.kind == "sync" and call.result == -errno.EIO]
            assert failed or first > count * 0.8, f"sync {first} of {count}"
            assert trace.status in (0, REFUSED)
            assert trace.status == 0 or length == FOR_EVER, f"one failure of sync {first} ended the run"
            ended["went on" if trace.status == 0 else "refused"] += 1
            explorer.explore(directory, trace.calls, limits)
            assert not explorer.report.bad, f"syncs {first} + {length}\n" + "\n".join(map(str, explorer.report.bad[:5]))
    tell(f"{ended.total()} runs: {dict(ended)}", *explorer.report.lines())
    assert explorer.report.states >= 8 * ended.total()
    assert ended["refused"]
    explorer.report.prove(proves)
    proves("EIO and ENOSPC points", ended.total())


def test_failed_sync(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    fail(QUICK_SYNCS, Limits(draws=1, share=0.003), work, recorder, judges, tell, proves)


@pytest.mark.long
def test_every_sync_fails(work: Path, recorder: Recorder, judges: Judges, tell: Tell, proves: Proves) -> None:
    fail(None, Limits(draws=1, share=0.08), work, recorder, judges, tell, proves)
