"""What becomes of the path of an open store: it is moved, removed, replaced, restored, or a part of it is."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import kvstore

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
BUCKET = Path("tables/1/0")
Tree = dict[str, str]


@dataclass(frozen=True)
class Paths:
    """A store, a copy of it that was made while no process had it open, and another store; both have a table `t`."""

    work: Path

    @property
    def data(self) -> Path:
        return self.work / "up/data"

    @property
    def copy(self) -> Path:
        return self.work / "copy"

    @property
    def other(self) -> Path:
        return self.work / "other"

    def away(self) -> Path:
        """A name that nothing has yet."""
        return next(each for n in range(1000) if not os.path.lexists(each := self.work / f"away{n}"))

    def begin(self, stores: Path) -> None:
        """Have the stores there, which :func:`make_stores` made."""
        shutil.copytree(stores / "other", self.other)
        for path in (self.data, self.copy):
            shutil.copytree(stores / "data", path)

    def foreign(self) -> dict[Path, Tree]:
        """Every file of the other stores that are not open, wherever they are by now."""
        return {path: tree(path) for path in (self.copy, self.other)}


def make_stores(where: Path) -> None:
    """Make a store and another one."""
    where.mkdir(exist_ok=True)
    for name in ("data", "other"):
        with kvstore.open(where / name) as store:
            table = store.create_table("t", SCHEMA, "k")
            table.upsert([{"k": k, "v": 0} for k in range(20)])
            table.snapshot()
            store.checkpoint()


def tree(path: Path) -> Tree:
    """Names of all there is below a path, with what is in it."""
    found = {}
    for each in sorted(path.rglob("*")):
        is_file = each.is_file() and not each.is_symlink()
        found[str(each.relative_to(path))] = hashlib.sha256(each.read_bytes()).hexdigest() if is_file else "no file"
    return found


Change = Callable[[Paths], list[Path]]
"""Changes a path; returns directories that are not the open store's and are where it was."""


def moved(paths: Paths) -> list[Path]:
    paths.data.rename(paths.away())
    return []


def removed(paths: Paths) -> list[Path]:
    shutil.rmtree(paths.data)
    return []


def moved_and_recreated(paths: Paths) -> list[Path]:
    moved(paths)
    shutil.copytree(paths.other, paths.data)
    return [paths.data]


def removed_and_recreated(paths: Paths) -> list[Path]:
    removed(paths)
    shutil.copytree(paths.other, paths.data)
    return [paths.data]


def moved_and_restored(paths: Paths) -> list[Path]:
    moved(paths)
    shutil.copytree(paths.copy, paths.data)
    return [paths.data]


def removed_and_restored(paths: Paths) -> list[Path]:
    removed(paths)
    shutil.copytree(paths.copy, paths.data)
    return [paths.data]


def swapped_by_a_link(paths: Paths) -> list[Path]:
    moved(paths)
    paths.data.symlink_to(paths.copy)
    return []


def emptied(paths: Paths) -> list[Path]:
    moved(paths)
    paths.data.mkdir()
    return [paths.data]


def parent_moved(paths: Paths) -> list[Path]:
    paths.data.parent.rename(paths.away())
    return []


def parent_restored(paths: Paths) -> list[Path]:
    parent_moved(paths)
    paths.data.parent.mkdir()
    shutil.copytree(paths.copy, paths.data)
    return [paths.data]


def parent_swapped_by_a_link(paths: Paths) -> list[Path]:
    parent_moved(paths)
    elsewhere = paths.away()
    elsewhere.mkdir()
    shutil.copytree(paths.copy, elsewhere / "data")
    paths.data.parent.symlink_to(elsewhere)
    return [elsewhere]


def part_restored(part: Path) -> Change:
    def change(paths: Paths) -> list[Path]:
        (paths.data / part).rename(paths.away())
        shutil.copytree(paths.copy / part, paths.data / part)
        return [paths.data / part]

    return change


def part_linked(part: Path) -> Change:
    def change(paths: Paths) -> list[Path]:
        (paths.data / part).rename(paths.away())
        (paths.data / part).symlink_to(paths.copy / part)
        return []

    return change


def part_moved(part: Path) -> Change:
    def change(paths: Paths) -> list[Path]:
        (paths.data / part).rename(paths.away())
        return []

    return change


WHOLE: dict[str, Change] = {
    each.__name__: each
    for each in (
        moved,
        removed,
        moved_and_recreated,
        removed_and_recreated,
        moved_and_restored,
        removed_and_restored,
        swapped_by_a_link,
        emptied,
        parent_moved,
        parent_restored,
        parent_swapped_by_a_link,
    )
}
PARTS: dict[str, Change] = {
    f"{name} {how}": change(part)
    for name, part in {
        "tables": BUCKET.parents[1],
        "table": BUCKET.parent,
        "bucket": BUCKET,
        "log": BUCKET / "log",
        "catalog": Path("meta"),
    }.items()
    for how, change in (("restored", part_restored), ("linked", part_linked), ("moved", part_moved))
}
CHANGES = {**WHOLE, **PARTS}
