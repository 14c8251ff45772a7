"""No merge engine is forgotten: each is documented, comes back from the catalog, and is compared with a model."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path

import merge_engines
from merge_engines.engine import MergeEngine
from merge_engines.spec import engine_of
from tests.support.engine_tables import KINDS_OF_TABLE

ROOT = Path(__file__).parents[2]


def documented() -> list[str | dict[str, object]]:
    """JSON forms in docs/format.md, "Merge engines"."""
    section = (ROOT / "docs" / "format.md").read_text().partition("\n### Merge engines\n")[2]
    table = section.partition("\nFunctions of an aggregate:")[0]
    return [json.loads(text) for text in re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)]


def engines() -> set[type]:
    found = set()
    for path in Path(merge_engines.__file__).parent.glob("[a-z]*.py"):
        module = importlib.import_module(f"merge_engines.{path.stem}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind is not MergeEngine and hasattr(kind, "merge") and hasattr(kind, "delete_behaviors"):
                found.add(kind)
    return found


def test_every_engine_is_in_the_format_and_comes_back_from_it() -> None:
    assert len(engines()) >= 4
    assert {type(engine_of(spec)) for spec in documented()} == engines()


def test_every_engine_is_compared_with_the_model_of_a_table() -> None:
    names = {spec if isinstance(spec, str) else next(iter(spec)) for spec in documented()}
    assert {*KINDS_OF_TABLE} - {"log"} == names
