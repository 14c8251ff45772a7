"""Damage to any one or two files is repaired from a complete replica: the store has what it had."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.repair.conftest import Built
from tests.repair.damage import KINDS, files_of
from tests.repair.worlds import goes_on, seen
from tests.support.repairs import from_the_same_start

QUICK, LONG = 10, 1_000


def is_lost_without_a_trace(damaged: dict[str, str], names: list[str]) -> bool:
    """Whether a first segment is lost with its sparse index: this looks as if it had expired."""
    gone = {Path(name) for name, kind in damaged.items() if kind == "delete"}
    logs = {Path(name).parent for name in names if name.endswith(".log")}
    firsts = [min(Path(name) for name in names if Path(name).parent == log and name.endswith(".log")) for log in logs]
    return any({first, first.with_suffix(".index")} <= gone for first in firsts)


@pytest.mark.parametrize("log_bytes_max", [None, 4000])
@pytest.mark.parametrize("cases", [QUICK // 2, pytest.param(LONG, marks=pytest.mark.long)])
def test_damage_to_one_or_two_files_is_repaired(
    cases: int, log_bytes_max: int | None, built: Callable[..., Built], tmp_path: Path
) -> None:
    original, truth = built((4, 9, 13), log_bytes_max)
    names = files_of(original.path)
    # The last edit reports what was shipped, so it was not shipped itself.
    last = max(int(name.rpartition(".")[2]) for name in names if name.startswith("meta/image/image."))
    report_of_replica = f"of the catalog: edit {last}"
    random = Random(cases)
    for case in range(cases):
        damaged = {name: random.choice(list(KINDS)) for name in random.sample(names, random.choice([1, 2, 2]))}
        if is_lost_without_a_trace(damaged, names):
            continue
        world = original.copied(tmp_path / "store")
        for name, kind in damaged.items():
            KINDS[kind](world.path / name, random)
        report = world.repair()
        if not report:
            # Nothing else has the newest edits, or knows where a log without index and last segment ended.
            assert all("if there w" in each for each in report.left), (case, damaged, report.left)
            report = world.repair(accepts_loss=True)
            assert all("if there w" in each or each == report_of_replica for each in report.gone), (
                case,
                damaged,
                report.gone,
            )
        else:
            assert report.gone == [], (case, damaged, report.gone)
        assert report, (case, damaged, report.left)
        found = seen(world.path)
        if any("/snapshots/" in name for name in damaged):
            found = from_the_same_start(found, truth)
        assert found == truth, (case, damaged)
        goes_on(world.path)
        shutil.rmtree(world.path)


def test_a_log_that_had_expired_begins_where_it_did_though_all_its_segments_are_lost(
    built: Callable[..., Built], tmp_path: Path
) -> None:
    original, truth = built((4, 9, 13), 4000)
    assert truth["t offsets"][0][0] > 0, "it had expired"
    world = original.copied(tmp_path / "store")
    for segment in (world.path / "tables/1/0/log").glob("*.log"):
        segment.unlink()
    assert world.repair()
    assert seen(world.path) == truth
