"""Reading a table back the way the model keeps it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

import kvstore
from kvstore.testing.model import Model, Row


def rows_of(table: kvstore.Table, as_of: int | None = None) -> list[Row]:
    rows: list[Row] = table.scan(as_of=as_of).read_all().to_pylist()
    return rows


def changes_of(
    table: kvstore.Table, start: object = "earliest", end: object = "latest"
) -> list[tuple[int, str, Row, int]]:
    names = table.schema.names
    return [
        (
            change["_log_offset"],
            change["_change_type"],
            {name: change[name] for name in names},
            change["_commit_version"],
        )
        for batch in table.changelog(start, end)
        for change in batch.to_pylist()
    ]


def binlog_of(
    table: kvstore.Table, start: object = "earliest", end: object = "latest"
) -> list[tuple[int, str, Row | None, Row | None, int]]:
    names = ("_log_offset", "_change_type", "before", "after", "_commit_version")
    return [tuple(change[name] for name in names) for batch in table.binlog(start, end) for change in batch.to_pylist()]


def operations_of(changes: kvstore.Changes) -> list[tuple[str, Row]]:
    words = ["delete" if is_delete else "upsert" for is_delete in changes.is_delete.to_pylist()]
    return list(zip(words, changes.rows.to_pylist(), strict=True))


def assert_equals_model(table: kvstore.Table, model: Model) -> None:
    if model.key:
        assert rows_of(table) == [model.rows[key] for key in sorted(model.rows)]
    assert changes_of(table) == model.log
    if model.rules.image == "full":
        assert table.count() == model.count
    assert table.offsets() == {0: (0, model.end)}


def changes_to(schema: pa.Schema, values: Mapping[int, int | None]) -> kvstore.Changes:
    """What gives these values of ``v`` to keys ``k``; None deletes a row."""
    return kvstore.Changes.of(
        [("delete", {"k": k}) if v is None else ("upsert", {"k": k, "v": v}) for k, v in values.items()], schema
    )
