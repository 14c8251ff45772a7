"""What a crash leaves of a store that two processes work on in three lanes, by a recorder that shares no code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.proof.budget import Run, budget
from tests.proof.second.explore import Explorer, assert_complete
from tests.proof.second.pagecache import SECTOR, PageCache
from tests.proof.second.plants import PLANTS
from tests.proof.second.recorder import Order, record, serve
from tests.proof.second.supervisor import ROOT, Event, Mark, Names, Node, NotPossible, Size, Sync, SyncRange, Write
from tests.proof.second.workload import STORE
from tests.support.processes import Child
from tests.support.proof import Proves

FIGURE = "second recorder's states"
STEPS, DRAWS = 30, 60
SEEDS_MAX = 4
"""A planted bug is found by then."""


def cache_of(*events: Event) -> PageCache:
    cache = PageCache()
    for event in events:
        cache.apply(event)
    return cache


CREATED = Node(1, False), Names(((ROOT, "f", 1),))


class TestPageCache:
    def test_what_is_not_synced_may_be_missing(self) -> None:
        cache = cache_of(*CREATED, Write(1, 0, b"abc"))
        assert cache.lost() == {}
        assert cache.killed() == {"f": b"abc"}
        assert cache.waits()

    def test_a_sync_of_a_file_brings_its_bytes_and_not_its_name(self) -> None:
        cache = cache_of(*CREATED, Write(1, 0, b"abc"), Sync(1))
        assert cache.lost() == {}
        cache.apply(Sync(ROOT))
        assert cache.lost() == {"f": b"abc"}
        assert not cache.waits()

    def test_sectors_get_there_one_by_one(self) -> None:
        old, new = b"o" * 4 * SECTOR, b"n" * 4 * SECTOR
        cache = cache_of(*CREATED, Write(1, 0, old), Sync(1), Sync(ROOT), Write(1, 0, new))
        found = {cache.left(Random(seed))["f"] for seed in range(200)}
        assert {old, new} < found
        sectors = {each[at : at + SECTOR] for each in found if each for at in range(0, len(each), SECTOR)}
        assert sectors == {old[:SECTOR], new[:SECTOR]}, "a sector is never torn"

    def test_a_length_may_come_before_its_bytes(self) -> None:
        cache = cache_of(*CREATED, Sync(1), Sync(ROOT), Write(1, 0, b"abc"))
        assert {cache.left(Random(seed))["f"] for seed in range(100)} == {b"", b"abc", b"\0\0\0"}

    def test_a_file_that_was_cut_may_be_long_still(self) -> None:
        cache = cache_of(*CREATED, Write(1, 0, b"abc"), Sync(1), Sync(ROOT), Size(1, 1))
        assert {cache.left(Random(seed))["f"] for seed in range(100)} == {b"abc", b"a", b"a\0\0"}

    def test_a_rename_happens_whole_or_not_at_all(self) -> None:
        directory = Node(2, True), Names(((ROOT, "d", 2),)), Sync(ROOT)
        cache = cache_of(*CREATED, *directory, Sync(1), Names(((ROOT, "f", None), (2, "g", 1))), Sync(2))
        found = {tuple(sorted(cache.left(Random(seed)))) for seed in range(100)}
        assert found == {("d", "f"), ("d", "d/g")}
        cache.apply(Sync(ROOT))
        assert {tuple(sorted(cache.left(Random(seed)))) for seed in range(100)} == {("d", "d/g")}

    def test_a_synchronous_write_brings_its_own_bytes(self) -> None:
        cache = cache_of(*CREATED, Sync(ROOT), Write(1, 0, b"abcdef"), SyncRange(1, 2, 4))
        assert cache.lost() == {"f": b"\0\0cd"}
        assert cache.killed() == {"f": b"abcdef"}
        assert all(each["f"][2:4] == b"cd" for each in map(cache.left, map(Random, range(50))) if each["f"])


def test_everything_that_changes_a_file_is_recorded(tmp_path: Path, proves: Proves) -> None:
    """Of threads, of processes that are forked and of ones that are started."""
    with Child(serve) as recorder:
        try:
            events = record(recorder, Order("change everything", tmp_path))
        except NotPossible as reason:
            proves.impossible(FIGURE, str(reason))
        assert_complete(events, tmp_path / STORE)
        assert [event.text for event in events if isinstance(event, Mark)] == ["begun\n", "done\n"]
        assert {type(event) for event in events} == {Node, Names, Write, Size, Sync, SyncRange, Mark}
        recorder.say(None)


def test_it_shares_no_code_with_the_other_recorder() -> None:
    program = "import sys, tests.proof.second.explore; print([name for name in sys.modules if 'tests.crash' in name])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, check=True
    )
    assert done.stdout == b"[]\n"


def explore(work: Path, run: Run, seed: int, proves: Proves, shares: int = 1) -> None:
    with Explorer(work) as explorer:
        while explorer.found.states < budget("second recorder", run) // shares:
            try:
                explorer.explore(seed, STEPS, DRAWS)
            except NotPossible as reason:
                proves.impossible(FIGURE, str(reason))
            assert not explorer.found.bad, "\n".join(explorer.found.bad)
            seed += 1
        found = explorer.found
    assert found.doubles, "no recovery was crashed"
    proves(FIGURE, found.states)
    proves("double-crash states", found.doubles)
    proves("retries after a crash", found.retries)


@pytest.mark.long
def test_states(tmp_path: Path, proves: Proves) -> None:
    explore(tmp_path, "long", 1, proves)


@pytest.mark.nightly
@pytest.mark.parametrize("_share", range(2))  # for two processes
def test_many_states(_share: int, tmp_path: Path, proves: Proves) -> None:
    explore(tmp_path, "nightly", int.from_bytes(os.urandom(4)), proves, shares=2)


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.parametrize("bug", PLANTS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, proves: Proves) -> None:
    with Explorer(tmp_path) as explorer:
        for seed in range(SEEDS_MAX):
            try:
                explorer.explore(seed, STEPS, DRAWS, bug)
            except NotPossible as reason:
                proves.impossible("planted bugs", str(reason))
            if explorer.found.bad:
                proves("planted bugs", 1)
                return
    pytest.fail(f"{bug} was not found in {explorer.found.states} states")
