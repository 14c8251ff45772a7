"""Whatever a power cut leaves of a catalog: all edits are there that something stands on, and no image is ahead."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import get_args

import pytest

from kvstore.errors import CorruptImage
from kvstore.options import JournalSync
from logformat.catalog.edits import CreateTable, TableOptions
from logformat.ids import TableId
from tests.checkpoint.catalogs import Catalog
from tests.crash.bugs import JOURNAL_BUGS
from tests.crash.conftest import Tell
from tests.crash.explore import assert_same, on_disk, without_noise
from tests.crash.places import materialised
from tests.crash.recorder import Order, Recorder
from tests.crash.states import states_of
from tests.crash.vfs import Disk
from tests.crash.workload import MARKS, STORE, Script
from tests.support.edits import columns
from tests.support.proof import Proves

CREATE = CreateTable(
    table_id=TableId(1), name="t", columns=columns(2), primary_key=["c0"], buckets=1, options=TableOptions()
)


def explored(
    work: Path, recorder: Recorder, sync: JournalSync, bug: str | None = None
) -> tuple[dict[int, set[int]], int]:
    """By what all must be there, what was the last edit; and how many states there were."""
    (directory := work / "run").mkdir()
    before = Catalog(directory / STORE)
    before.journal.append(lambda _: CREATE)
    before.journal.close()
    disk, random = Disk.holding(str(directory), on_disk(directory)), Random(5)
    trace = recorder.run(Order(sync, directory, Script(()), bug=bug))
    assert trace.status == 0
    found: dict[int, set[int]] = {}
    seen = set()
    for call in trace.calls:
        disk.run(call)
        promised = int((disk.seen().get(MARKS) or b"1").split()[-1])
        for state in states_of(disk, random, draws=4):
            contents = without_noise(state.contents)
            key = promised, hash(frozenset(contents.items()))
            if key in seen:
                continue
            seen.add(key)
            with materialised(contents, work) as place, before.found_at(place / STORE) as catalog:
                last = catalog.journal.state().txid
                assert last >= promised, "an edit is gone that something stands on"
                found.setdefault(promised, set()).add(last)
    assert_same(disk.seen(), on_disk(directory))
    return found, len({contents for _, contents in seen})


@pytest.mark.parametrize("sync", get_args(JournalSync))
def test_power_loss(work: Path, recorder: Recorder, tell: Tell, proves: Proves, sync: JournalSync) -> None:
    found, states = explored(work, recorder, sync)
    tell(f"{sync}: {sum(map(len, found.values()))} ends, by what is promised: {found}")
    assert len(found) == 7
    proves("crash states", states)


@pytest.mark.parametrize("bug", JOURNAL_BUGS)
def test_a_planted_bug_is_found(work: Path, recorder: Recorder, proves: Proves, bug: str) -> None:
    with pytest.raises((AssertionError, CorruptImage), match=r"something stands on|ends before what is known"):
        explored(work, recorder, "WRITE_NO_SYNC", bug)
    proves("planted bugs", 1)
