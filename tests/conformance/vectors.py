"""Access to the vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in map(json.loads, Path(__file__).with_name("vectors.jsonl").read_text().splitlines())
}


def running(*kinds: str) -> list[str]:
    """Names of the vectors of these kinds."""
    return [name for name, vector in VECTORS.items() if vector["kind"] in kinds]
