"""The packages of the distribution, and what they import."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


PACKAGES = (
    *("kvstore", "kvstore_command", "logformat", "merge_engines"),
    *("pyspark_kvstore", "pyspark_kvstore_python", "writer"),
)


def closure(*names: str) -> Iterator[Distribution]:
    """Distributions of the base dependencies, and of what these need."""
    waiting, seen = list(names), set[str]()
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        found = distribution(requirement.name)
        waiting += found.requires or []
        yield found


def link(distributions: Iterator[Distribution], site: Path) -> None:
    """Install distributions as links to what is installed here."""
    for found in distributions:
        for name in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / name).exists():
                (site / name).symlink_to(found.locate_file(name))
