"""Histories that Jepsen recorded, in the form in which porcupine's repository keeps them; see NOTICE."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / "porcupine"
VERDICTS = {
    **dict.fromkeys([0, 37, 57, 85, 89, 99], False),
    **dict.fromkeys([2, 5, 7, 25, 48, 101], True),
}
"""What porcupine_test.go says of the logs etcd_*.log."""
_ETCD = re.compile(r"INFO\s+jepsen\.util\s+-\s+(\d+)\s+:(\w+)\s+:(\w+)\s+(\S.*)")
_KV = re.compile(r'\{:process (\d+), :type :(\w+), :f :(\w+), :key "(\d+)", :value (?:nil|"(.*)")\}')


def etcd(number: int) -> list[dict[str, Any]]:
    """A register that was written over the network, with calls that timed out."""
    records = []
    for time, line in enumerate((FILES / f"etcd_{number:03}.log").read_text().splitlines()):
        found = _ETCD.fullmatch(line)
        assert found is not None, line
        process, type, f, value = found.groups()
        records.append({"process": int(process), "type": type, "f": f, "value": _etcd_value(value), "time": time})
    return records


def _etcd_value(text: str) -> Any:
    if text in ("nil", ":timed-out"):
        return None
    return [int(part) for part in text[1:-1].split()] if text.startswith("[") else int(text)


def kv(name: str) -> dict[str, list[dict[str, Any]]]:
    """For each key the calls `get`, `put` and `append` of a text."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for time, line in enumerate((FILES / f"{name}.txt").read_text().splitlines()):
        found = _KV.fullmatch(line)
        assert found is not None, line
        process, type, f, key, value = found.groups()
        record = {"process": int(process), "type": type, "f": f, "value": value, "time": time}
        by_key.setdefault(key, []).append(record)
    return by_key
