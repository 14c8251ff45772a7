"""A sync that fails drops what waited for it, for good: nothing that was acknowledged may have been among it."""

from __future__ import annotations

import errno
from collections import Counter

import pytest

from tests.crash.explore import Lab, Limits
from tests.crash.scripts import script
from tests.crash.trace import Plan
from tests.crash.workload import REFUSED

QUICK_SYNCS = 2
FOR_EVER = 10_000
LENGTHS = (1, 2, FOR_EVER)


def fail(lab: Lab, syncs_max: int | None, limits: Limits) -> None:
    plan = script(21, 6, numbered=True, retries=3)
    _, whole = lab.record(plan)
    count = sum(call.kind == "sync" for call in whole.calls)
    step = 1 if syncs_max is None else -(-count // syncs_max)
    explorer = lab.explorer(plan)
    ended: Counter[str] = Counter()
    for first in range(0, count, step):
        for length in LENGTHS:
            failing = frozenset(range(first, first + length))
            directory, trace = lab.record(plan, plan=Plan(fail_sync=failing))
            failed = [call for call in trace.calls if call.kind == "sync" and call.result == -errno.EIO]
            assert failed or first > count * 0.8, f"sync {first} of {count}"
            assert trace.status in (0, REFUSED)
            assert trace.status == 0 or length == FOR_EVER, f"one failure of sync {first} ended the run"
            ended["went on" if trace.status == 0 else "refused"] += 1
            explorer.explore(directory, trace.calls, limits)
            explorer.report.assert_good(f"syncs {first} + {length}")
    lab.tell(f"{ended.total()} runs: {dict(ended)}")
    assert explorer.report.states >= 8 * ended.total()
    assert ended["refused"]
    lab.prove(explorer.report)
    lab.proves("EIO and ENOSPC points", ended.total())


def test_failed_sync(lab: Lab) -> None:
    fail(lab, QUICK_SYNCS, Limits(draws=1, share=0.003))


@pytest.mark.long
def test_every_sync_fails(lab: Lab) -> None:
    fail(lab, None, Limits(draws=1, share=0.08))
