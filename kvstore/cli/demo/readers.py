"""Reads what the demo wrote, as changes that are folded and as rows: with Spark, or with Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

import kvstore

TABLE = "files"

Tree: TypeAlias = dict[str, tuple[str, str]]
"""Mode and blob of each path."""


class Reader(Protocol):
    """Reads a store.

    Attributes:
        name: What reads, for messages.
    """

    name: str

    def read(self, path: Path, ends: Sequence[int]) -> tuple[dict[str, int], list[Tree], Tree]:
        """Number of changes of each kind, the files before each of some offsets, and the files in the table."""


class PythonReader:
    """Folds the changelog one change after the other."""

    name = "Python"

    def read(self, path: Path, ends: Sequence[int]) -> tuple[dict[str, int], list[Tree], Tree]:
        """See :meth:`Reader.read`."""
        with kvstore.open(path, read_only=True) as store:
            table = store.table(TABLE)
            counts: Counter[str] = Counter()
            for batch in table.changelog():
                counts.update(batch.column("_change_type").to_pylist())
            folded = [_fold(table, end) for end in ends]
            return dict(counts), folded, files_of(table.scan(["path", "mode", "blob"]).read_all())


def files_of(rows: pa.Table) -> Tree:
    """Rows as files."""
    columns = (rows.column(name).to_pylist() for name in ("path", "mode", "blob"))
    return {path: (mode, blob) for path, mode, blob in zip(*columns, strict=True)}


def _fold(table: kvstore.ReadTable, end: int) -> Tree:
    files: Tree = {}
    for batch in table.changelog(end=end, columns=["_change_type", "path", "mode", "blob"]):
        for change in batch.to_pylist():
            if change["_change_type"] == "delete":
                del files[change["path"]]
            elif change["_change_type"] != "update_preimage":
                files[change["path"]] = (change["mode"], change["blob"])
    return files
