"""Lock files are installed into one environment: a package that several name has one version."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", re.MULTILINE)


def test_packages_have_one_version() -> None:
    pinned: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path in ROOT.glob("requirements*.lock"):
        for name, version in _PINNED.findall(path.read_text()):
            pinned[name][path.name] = version
    assert {"pyarrow", "matplotlib", "atheris"} <= pinned.keys()
    assert not {name: versions for name, versions in pinned.items() if len(set(versions.values())) > 1}
