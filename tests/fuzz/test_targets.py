"""Bytes from anywhere: every reader succeeds, or raises an error of kvstore that says what is wrong.

Checksums are made right in most of what is tried, for they would keep the rest from being read at all. *Quick* and
*long* try seeds, the corpus of what was trouble once, and what chance makes of them; *nightly* has atheris look for
inputs that lead further.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.kernel import build
from tests.fuzz import guided, runner
from tests.fuzz.planted import INPUT, PLANTED
from tests.fuzz.sanitized import sanitized
from tests.fuzz.targets import ALLOWED, CORPUS, TARGETS
from tests.support.proof import Proves

QUICK, LONG, SANITIZED = 50, 4_200, 20_000
"""Runs of a target whose share is 1; seeds and corpus are run whatever the share."""


def budgets(runs: int) -> dict[str, int]:
    """Runs by target: all seeds and what was trouble once, and its share of what chance makes of them."""
    return {name: len(each.inputs(name)) + int(runs * each.share) for name, each in TARGETS.items()}


def test_seeds_reach_what_the_checksums_cover() -> None:
    """Each target ends well for one of its seeds at least: else nothing but refusals would be tried."""
    for name, target in TARGETS.items():
        assert any(_ends_well(target.run, seed) for seed in target.seeds()), name
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= TARGETS.keys()


def _ends_well(run: Callable[[bytes], None], seed: bytes) -> bool:
    try:
        run(seed)
    except ALLOWED:
        return False
    return True


@pytest.mark.parametrize("bug", PLANTED)
def test_what_is_bad_is_found_with_its_input(bug: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=rf"{bug}(?s:.*){INPUT.hex()}"):
        runner.tried(tmp_path / "input", {bug: 1}, seed=1, seconds=1)


def test_what_takes_memory_is_found_by_a_process_that_took_more(tmp_path: Path) -> None:
    """A child of Linux counts its parent's memory in ``ru_maxrss``."""
    program = (
        "taken = bytearray(5 << 28); taken[:: 1 << 12] = b'x' * len(taken[:: 1 << 12]);"
        "from pathlib import Path; from tests.fuzz import runner;"
        f"runner.tried(Path({str(tmp_path / 'input')!r}), {{'takes_memory': 1}}, seed=1)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=runner.ROOT, capture_output=True, text=True, check=False)
    assert "bytes were taken" in done.stderr


def test_some_runs(tmp_path: Path) -> None:
    runner.tried(tmp_path / "input", budgets(QUICK), seed=1)


@pytest.mark.long
def test_many_runs(tmp_path: Path, proves: Proves) -> None:
    chosen = budgets(LONG)
    seed = secrets.randbits(32)
    runner.tried(tmp_path / "input", chosen, seed=seed)
    proves("fuzz runs", sum(chosen.values()))


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which(build.COMPILER) is None, reason="the kernel under sanitizers needs a C compiler: cc")
def test_every_target_with_the_native_kernel_under_sanitizers(tmp_path: Path, proves: Proves) -> None:
    program, environment = sanitized(tmp_path)
    runs = budgets(LONG) | {"index_pages": SANITIZED, "native_rows": SANITIZED, "native_writes": SANITIZED // 4}
    seed = secrets.randbits(32)
    runner.tried(tmp_path / "input", runs, seed=seed, program=program, environment=environment)
    proves("fuzz runs", sum(runs.values()))


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_guided_runs(name: str, tmp_path: Path, proves: Proves) -> None:
    proves("fuzz runs", guided.tried(tmp_path, name, seconds=TARGETS[name].seconds))
