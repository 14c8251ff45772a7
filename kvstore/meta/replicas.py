"""Replicas in the catalog. Pure, like the state.

* An edit replaces the whole status of a stream, so replaying it twice changes nothing.
* Findings are those of the last check: only another check clears them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import msgspec

from logformat.catalog.edits import AddReplica, DropReplica, FindReplica, ReportReplica, TellReplica
from logformat.catalog.replicas import CATALOG, ReplicaStatus, Stream
from logformat.ids import TableId

Replicas = Mapping[str, ReplicaStatus]
AboutReplica = AddReplica | DropReplica | ReportReplica | TellReplica | FindReplica


def replicas_after(known: Replicas, edit: AboutReplica, tables: Container[TableId]) -> dict[str, ReplicaStatus]:
    """Replicas after one more edit; parts of it about a dropped replica or table do nothing."""
    now = dict(known)
    if isinstance(edit, AddReplica):
        now[edit.name] = ReplicaStatus(url=edit.url)
    elif edit.name not in now:
        return now
    elif isinstance(edit, DropReplica):
        del now[edit.name]
    elif isinstance(edit, FindReplica):
        kept = [each for each in edit.findings if _is_there(each.stream, tables)]
        now[edit.name] = msgspec.structs.replace(now[edit.name], findings=kept, checked_ms=edit.checked_ms)
    else:
        reported = {
            each.stream: each for each in (*now[edit.name].shipped, *edit.shipped) if _is_there(each.stream, tables)
        }
        as_of_ms = edit.as_of_ms if isinstance(edit, TellReplica) else now[edit.name].as_of_ms
        shipped = [reported[stream] for stream in sorted(reported)]
        now[edit.name] = msgspec.structs.replace(now[edit.name], shipped=shipped, as_of_ms=as_of_ms)
    return now


def _is_there(stream: Stream, tables: Container[TableId]) -> bool:
    return stream == CATALOG or stream.table_id in tables


def without_table(known: Replicas, table_id: TableId) -> dict[str, ReplicaStatus]:
    """Replicas without the streams and findings of a table."""
    return {
        name: msgspec.structs.replace(
            replica,
            shipped=[each for each in replica.shipped if each.stream.table_id != table_id],
            findings=[each for each in replica.findings if each.stream.table_id != table_id],
        )
        for name, replica in known.items()
    }
