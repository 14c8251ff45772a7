"""Tests of the native kernel with a library that ends the process at a read outside a buffer, or at what C forbids.

``tests/fuzz/test_targets.py`` has the fuzz targets run with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.kernel import build
from tests.fuzz.sanitized import sanitized
from tests.support.package import ROOT

SUITES = ["tests/kernel", "tests/index/test_leaves.py", *(str(path) for path in ROOT.glob("tests/*/test_native_*.py"))]
OTHERS = ["tests/kernel/test_library.py", "tests/kernel/test_under_sanitizers.py"]
"""Tests that build libraries of their own."""


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which(build.COMPILER) is None, reason="the kernel under sanitizers needs a C compiler: cc")
def test_what_the_kernel_does_is_right_under_sanitizers(tmp_path: Path) -> None:
    (module, library), environment = sanitized(tmp_path)
    options = [
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-o",
        "faulthandler_timeout=0",
        *(f"--ignore={each}" for each in OTHERS),
    ]
    run = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", module, library, "pytest", "-m", "not nightly", *options, *SUITES],
        cwd=ROOT,
        env=run | environment | {"HYPOTHESIS_PROFILE": "quick", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout
