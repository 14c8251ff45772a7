"""The benchmarks measure stores that do the same work, and judge what they found as the targets say."""

from __future__ import annotations

import pytest

from benchmarks.measuring import KVSTORE, Line
from benchmarks.peers import LmdbByHand, RawLimit, Sqlite
from benchmarks.report import targets_grid
from benchmarks.rows import NARROW, NESTED, WIDE, Shape
from benchmarks.targets import outcomes
from benchmarks.verification import verify
from benchmarks.works import disk, reads, writes


@pytest.mark.parametrize("shape", [NARROW, WIDE, NESTED], ids=lambda shape: shape.name)
def test_peers_come_to_the_same_rows_and_as_many_records_as_kvstore(shape: Shape) -> None:
    verify([Sqlite, LmdbByHand], shape, "sync", rows=500)


def test_a_peer_that_does_less_is_found() -> None:
    class Forgetful(LmdbByHand):
        name = "forgetful"

        def log_count(self) -> int:
            return super().log_count() - 1

    with pytest.raises(AssertionError, match=r"forgetful has .* records in its log"):
        verify([Forgetful], NARROW, "sync", rows=500)


def test_a_target_is_held_against_the_best_peer_of_the_same_rounds() -> None:
    figures = {
        KVSTORE: [300.0, 700.0, 330.0],
        Sqlite.name: [100.0, 200.0, 100.0],
        LmdbByHand.name: [90.0, 10.0, 90.0],
        RawLimit.name: [400.0, 1000.0, 440.0],
    }
    found = list(outcomes({writes.UPDATE_50K: Line(writes.UPDATE_50K, "rows/s", figures)}))
    assert [(each.ratio, each.holds) for each in found] == [(3.3, True), (0.75, True)]
    assert found[0].best_peer == (Sqlite.name, 100.0)
    slower = {**figures, Sqlite.name: [110.0, 240.0, 111.0]}
    found = list(outcomes({writes.UPDATE_50K: Line(writes.UPDATE_50K, "rows/s", slower)}))
    assert [each.holds for each in found] == [False, True]


def test_a_target_may_be_a_figure_by_itself_or_one_from_above() -> None:
    lines = {
        reads.LOOKUP: Line(reads.LOOKUP, "keys/s", {KVSTORE: [999_000.0]}, measured_on="2026-01-02"),
        disk.LOG_BYTES: Line(disk.LOG_BYTES, "bytes", {disk.ZSTD: [30.0], disk.PARQUET: [20.0]}),
    }
    found = list(outcomes(lines))
    assert [each.holds for each in found] == [False, True]
    shown = targets_grid(found).markdown()
    assert "(not of this run: 2026-01-02) | 999,000 keys/s |" in shown
    assert "1.50 of Parquet, zstd | ≤ 2 | yes |" in shown
