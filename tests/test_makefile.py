"""The Makefile prints a line for each step of the set-up, and what went wrong if one fails."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def alone() -> dict[str, str]:
    """The environment without what a `make` that runs the tests adds to it: its own lines, and its flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def step(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / ".ci/step", *arguments], cwd=directory, capture_output=True, text=True, check=False)


def test_a_step_prints_its_name_and_its_time(tmp_path: Path) -> None:
    done = step(tmp_path, "Python packages", "sh", "-c", "echo chatter; echo warning >&2")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"Python packages +\d+ s\n", done.stdout)
    assert (tmp_path / ".logs/Python-packages.log").read_text() == "chatter\nwarning\n"


def test_a_step_may_show_its_output_without_the_warnings(tmp_path: Path) -> None:
    done = step(tmp_path, "--shown", "demo", "sh", "-c", 'echo "$1"; echo warning >&2', "sh", "a  b")
    assert done.stderr == ""
    assert re.fullmatch(r"a  b\ndemo +\d+ s\n", done.stdout)


def test_a_step_that_fails_shows_why_and_names_its_log(tmp_path: Path) -> None:
    done = step(tmp_path, "types", "sh", "-c", "echo wrong >&2; exit 3")
    assert done.returncode == 3
    assert re.search(r"types +\d+ s, failed with status 3\nwrong\n.*: \.logs/types\.log\n", done.stderr)


@pytest.mark.parametrize("target", ["setup", "lint", "demo", "docs"])
def test_all_that_prints_is_a_step(target: str) -> None:
    done = subprocess.run(
        ["make", "-n", "-B", target], cwd=ROOT, env=alone(), capture_output=True, text=True, check=True
    )
    lines = done.stdout.replace("\\\n", "").splitlines()
    quiet = r"touch |rm -f |mv |\.venv/bin/python -c .* > \.venv/java\.tmp 2> \.venv/java\.none"
    assert [line for line in lines if not re.match(rf"\.ci/step |{quiet}", line)] == []


def test_what_make_test_leaves_out_for_its_time_runs_in_ci_too() -> None:
    run = (ROOT / ".ci/run").read_text().splitlines()
    assert run[-2:] == ["make test", "make test-spark"]
    done = subprocess.run(
        ["make", "-n", "test", "test-spark"], cwd=ROOT, env=alone(), capture_output=True, text=True, check=True
    )
    first, second = re.findall(r'pytest .*-m "([^"]*)"', done.stdout)
    assert first == "not long and not nightly and not spark_more"
    assert second == "spark_more and not long and not nightly"


def test_make_wheel_builds_a_wheel_for_each_system_that_has_the_kernel() -> None:
    done = subprocess.run(["make", "-n", "wheel"], cwd=ROOT, env=alone(), capture_output=True, text=True, check=True)
    (systems,) = re.findall(r"for system in ([^;]*);", done.stdout)
    listed = re.findall(r'^    "([a-z0-9_-]+)": \(', (ROOT / "hatch_build.py").read_text(), re.MULTILINE)
    assert systems.split() == listed == ["linux-x86_64", "linux-aarch64", "macos-arm64"]


def test_processes_of_a_run_keep_what_they_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of hundreds would compile all that it imports, which is a tenth of the time of all tests."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    makefile = tmp_path / "Makefile"
    makefile.write_text((ROOT / "Makefile").read_text() + "\nshown:\n\t@echo [$$PYTHONDONTWRITEBYTECODE]\n")
    done = subprocess.run(["make", "-f", makefile, "shown"], env=alone(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
