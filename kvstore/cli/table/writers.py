"""``kvstore writers``: the writers of a table that have a name, or had one."""

from __future__ import annotations

from kvstore.cli.arguments import AsJson, Directory, TableName, opened_store
from kvstore.cli.printing import print_records

_NAMES = ("writer", "writer_id", "sends", "incarnation", "last_epoch", "run", "fenced")


def writers(path: Directory, name: TableName, as_json: AsJson = False) -> None:
    """List the writers of a table that have a name, and those that lost it, which are fenced.

    `last_epoch` is the last epoch that every bucket has, of writers that send epochs. A writer whose name was dropped,
    or was taken over so long ago that the catalog has forgotten it, has its id only.
    """
    with opened_store(path) as store:
        table = store.table(name)
        rows = [
            (word, each.writer_id, each.kind, each.epoch, each.last_epoch, each.run, False)
            for word, each in table.writers.items()
        ]
        origins = table.origins()
        for id in sorted(table.fenced_writers):
            word, was = origins.writer(id) or (None, None)
            about = (None, None, None) if was is None else (was.kind, was.epoch, was.run)
            rows.append((word, id, *about[:2], None, about[2], True))
    print_records(_NAMES, [dict(zip(_NAMES, row, strict=True)) for row in rows], as_json=as_json)
