"""``kvstore compact``: make the index files of tables as small as their rows."""

from __future__ import annotations

from typing import Annotated

import typer

from kvstore.cli.arguments import AsJson, Directory, opened_store
from kvstore.cli.printing import print_records


def compact(
    path: Directory,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="Only these tables.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace indexes by copies without free pages; other processes may read the store meanwhile.

    A process that writes a table compacts it itself: Table.compact().
    """
    with opened_store(path, write=True) as store:
        sizes = [
            {"table": name, "bucket": bucket, "bytes_before": done.bytes_before, "bytes_after": done.bytes_after}
            for name in tables or store.list_tables()
            for bucket, done in store.table(name).compact().items()
        ]
    print_records(["table", "bucket", "bytes_before", "bytes_after"], sizes, as_json=as_json)
