"""What was counted is kept; a figure that a machine can't reach is said to be so, and does not fail the run."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import reliability_peers
from benchmarks.pages import DOCS
from tests.proof.power import EXT4, Disk, NotPossible
from tests.support import proof


def test_a_run_without_root_is_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotPossible, match="root"), Disk(EXT4, work):
        pass
    assert not list(work.iterdir())


def test_what_is_not_possible_is_not_missed() -> None:
    properties: list[tuple[str, object]] = []
    proves = proof.Proves(properties)
    proves("planted bugs", 3)
    with pytest.raises(pytest.skip.Exception, match="no loop devices"):
        proves.impossible("real power cuts", "no loop devices")
    report = pytest.TestReport("t", ("t.py", 1, "t"), {}, "skipped", None, "call", user_properties=properties)
    not_here = proof.impossible([report])
    assert not_here == {"real power cuts": "no loop devices"}
    missed = proof.lacking(Counter({"planted bugs": 3}), "nightly", not_here)
    assert "planted bugs: 3 of 16" in missed
    assert not [line for line in missed if line.startswith("real power cuts")]


@pytest.fixture
def results(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of what is kept and of the page."""
    monkeypatch.setattr(proof, "RESULTS", work / "proof.json")
    monkeypatch.setattr(proof, "DOCS", work)
    shutil.copy(DOCS / "reliability.md", work)
    kept = {"day": "2026-01-01", "minutes": 51, "impossible": {}, "tried": {"fuzz runs": [12_345_678, "2026-01-01"]}}
    (work / "proof.json").write_text(json.dumps(kept))
    return work


def test_figures_that_a_part_of_a_run_reaches_are_kept_and_shown_beside_the_others(results: Path) -> None:
    proof.keep(Counter({"bits flipped": 1_234_567, "interrupts": 53_999}), {}, 3_000)
    kept = json.loads((results / "proof.json").read_text())
    assert kept["tried"].keys() == {"fuzz runs", "bits flipped"}
    assert (kept["day"], kept["minutes"]) == ("2026-01-01", 51)
    page = (results / "reliability.md").read_text()
    assert "| fuzz runs | 100,000 | 10,000,000 | 12,345,678 | 2026-01-01 |" in page
    assert f"| bits flipped | 16,000 | 1,000,000 | 1,234,567 | {kept['tried']['bits flipped'][1]} |" in page
    assert "| interrupts | 2,160 | 54,000 | not yet |  |" in page
    assert "on 2026-01-01, took 51 minutes" in page


def test_a_whole_run_is_kept_with_what_was_not_possible(results: Path) -> None:
    reached = Counter({figure.name: figure.nightly for figure in proof.FIGURES if figure.name != "real power cuts"})
    proof.keep(reached, {"real power cuts": "no loop devices"}, 3_000)
    kept = json.loads((results / "proof.json").read_text())
    assert (kept["minutes"], kept["impossible"]) == (50, {"real power cuts": "no loop devices"})
    assert kept["day"] > "2026-01-01"
    assert "took 50 minutes" in (results / "reliability.md").read_text()


def test_the_page_shows_what_was_found_of_other_stores() -> None:
    kept = json.loads(reliability_peers.RESULTS.read_text())
    assert reliability_peers.text_of(kept) in (DOCS / "reliability.md").read_text()
