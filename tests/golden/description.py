"""What a store holds, as text that stays comparable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import kvstore
from kvstore.errors import UnsupportedOperation


def described(store: kvstore.Store) -> dict[str, Any]:
    """Everything a user can see of a store."""
    jobs = {name: store.job(name).show() for name in store.list_jobs()}
    return {
        "tables": {name: _table(store.table(name)) for name in store.list_tables()},
        "consumers": _texts(store.consumers),
        "jobs": {name: msgspec.to_builtins(status.statistics) for name, status in jobs.items()},
        "replicas": {name: [len(report.findings), report.edits_shipped] for name, report in store.replicas.items()},
    }


def _table(table: kvstore.Table) -> dict[str, Any]:
    changes = [row for batch in table.changelog() for row in batch.to_pylist()]
    try:
        former = sorted(map(repr, table.scan(as_of=_middle(table)).read_all().to_pylist()))
    except UnsupportedOperation as error:
        former = [type(error).__name__]
    found = {name: _found(table, columns) for name, columns in table.indexes.items()}
    return ({"indexes": found} if found else {}) | {
        "schema": str(table.schema),
        "primary_key": list(table.primary_key or ()),
        "offsets": _texts(table.offsets()),
        "writers": sorted(table.writers),
        "rows": sorted(map(repr, table.scan().read_all().to_pylist())) if table.primary_key else [],
        "former": former,
        "changes": list(map(repr, changes)),
    }


def _found(table: kvstore.Table, columns: Sequence[str]) -> list[Any]:
    """Columns of a secondary index, and the rows of each value of the first one, as they are found by it."""
    values = sorted(set(table.to_arrow(columns[:1])[columns[0]].to_pylist()), key=repr)
    return [list(columns), *(sorted(map(repr, table.find(**{columns[0]: value}).to_pylist())) for value in values)]


def _middle(table: kvstore.Table) -> dict[int, int]:
    return {bucket: (start + end) // 2 for bucket, (start, end) in table.offsets().items()}


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _texts(each) for name, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
