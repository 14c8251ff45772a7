"""A figure that a machine can't reach is said to be so, with the reason, and does not fail the run."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.proof.power import EXT4, Disk, NotPossible
from tests.support import proof


def test_whoever_is_not_root_is_told_so(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "planted bugs: 3 of 12" in missed
    assert not [line for line in missed if line.startswith("real power cuts")]
