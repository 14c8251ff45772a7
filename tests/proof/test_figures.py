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


def test_what_was_tried_is_kept_and_shown(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "RESULTS", work / "proof.json")
    monkeypatch.setattr(proof, "DOCS", work)
    shutil.copy(DOCS / "reliability.md", work)
    proof.keep(Counter({"bits flipped": 1_234_567}), {"real power cuts": "no loop devices"}, 3_000)
    kept = json.loads((work / "proof.json").read_text())
    assert (kept["tried"], kept["impossible"]) == ({"bits flipped": 1_234_567}, {"real power cuts": "no loop devices"})
    page = (work / "reliability.md").read_text()
    assert "| bits flipped | 16,000 | 1,000,000 | 1,234,567 |" in page
    assert "In 50 minutes" in page


def test_the_page_shows_what_was_found_of_other_stores() -> None:
    kept = json.loads(reliability_peers.RESULTS.read_text())
    assert reliability_peers.text_of(kept) in (DOCS / "reliability.md").read_text()
