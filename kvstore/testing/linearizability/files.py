"""Histories as files: a record is a line of JSON.

* A process that is killed leaves at most one line without an end; it is as if it had not been written.
* What JSON has no form for is written as ``{"repr": …}``, which is equal for equal values.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kvstore.errors import InvalidRequest
from kvstore.testing.linearizability.operations import Record

SUFFIX = ".jsonl"


def encode(record: Record) -> bytes:
    """One record as a line."""
    return json.dumps(record, default=lambda value: {"repr": repr(value)}).encode() + b"\n"


def read_history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, or of all ``*.jsonl`` files of a directory.

    A last line without a line feed is left out: its process was killed while it wrote.

    Raises:
        InvalidRequest: There is no such file, or no such file in the directory, or a line is no JSON object.
    """
    given = Path(path)
    files = sorted(given.glob(f"*{SUFFIX}")) if given.is_dir() else [given]
    if not files or not files[0].exists():
        raise InvalidRequest(f"There is no history: give a file, or a directory with *{SUFFIX} files.", path=str(given))
    return [record for file in files for record in _read(file)]


def _read(file: Path) -> list[dict[str, Any]]:
    *lines, _ = file.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"A line is no JSON: {error}.", path=str(file), line=number) from error
        if not isinstance(record, dict):
            raise InvalidRequest("A record is a JSON object.", path=str(file), line=number)
        records.append(record)
    return records
