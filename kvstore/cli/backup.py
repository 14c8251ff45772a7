"""``kvstore backup``: a copy of a store that opens like any store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvstore.cli.arguments import AsJson, Directory, opened_store
from kvstore.cli.printing import print_ends, print_json
from kvstore.cli.progress import Bar


def backup(
    path: Directory,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            help="A new or empty directory for the backup, or one with an interrupted backup of the store.",
            show_default=False,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Copy a store as it is now while other processes write it; the copy is a store.

    An interrupted backup is no store; the same command continues it.
    """
    with opened_store(path, write=True) as store, Bar(path.name, "bytes") as bar:
        done = store.backup(target, bar.to)
    if as_json:
        print_json({"txid": done.txid, "ends": done.ends, "bytes": done.bytes})
    else:
        print_ends(done.ends)
