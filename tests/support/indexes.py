"""Looking into a bucket's index from outside, and losing it."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb

from logformat.ids import Offset, Position
from logformat.log import index_state

BUCKET = Path("tables/1/0")


def contents(store: Path) -> dict[bytes, bytes]:
    """Every key and value of the index of a closed store; its state says nothing of the synced end."""
    with (
        lmdb.open(str(store / BUCKET / "index"), readonly=True, lock=False) as environment,
        environment.begin() as view,
    ):
        found = {bytes(key): bytes(value) for key, value in view.cursor()}
    state = index_state.decode(found[b"\0"])._replace(
        synced_base=Offset(0),
        synced_position=Position(0),
        synced_offset=Offset(0),
    )
    return found | {b"\0": index_state.encode(state)}


def lose_index(store: Path) -> None:
    """Remove the index of a closed store."""
    shutil.rmtree(store / BUCKET / "index")


def files_in(store: Path, folder: str) -> list[str]:
    """Names in a folder of the bucket, sorted; none if it is not there."""
    place = store / BUCKET / folder
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []
