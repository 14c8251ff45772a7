"""The vectors, and which of them run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conformance.pending import PENDING

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in map(json.loads, Path(__file__).with_name("vectors.jsonl").read_text().splitlines())
}
WAITING = {name for names in PENDING.values() for name in names}


def running(*kinds: str) -> list[str]:
    """Names of the vectors of these kinds that do not wait for anything."""
    return [name for name, vector in VECTORS.items() if vector["kind"] in kinds and name not in WAITING]
