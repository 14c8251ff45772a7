"""Figures of a store for Prometheus, from its files; counts and latencies are in the process that writes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kvstore import Store, prometheus_text
from kvstore.console.parts import is_error
from kvstore.console.table.definition import definitions
from kvstore.console.table.tables import matching, summary
from kvstore.errors import StoreError

_ABOUT = {
    "kvstore_table_readable": ("gauge", ("table",), "1 if the table can be read; 0 if it is damaged."),
    "kvstore_table_rows": ("gauge", ("table",), "Rows; not of a table with a WAL image."),
    "kvstore_table_changes": ("gauge", ("table",), "Offsets that the log holds."),
    "kvstore_table_log_bytes": ("gauge", ("table",), "Bytes of the files of the log."),
    "kvstore_table_index_bytes": ("gauge", ("table",), "Bytes of the files of the index."),
    "kvstore_catalog_edits": ("gauge", (), "Edits of the catalog."),
    "kvstore_consumer_lag_changes": ("gauge", ("consumer", "table"), "Offsets that a consumer has yet to commit."),
    "kvstore_consumer_lag_seconds": ("gauge", ("consumer", "table"), "Since the first change it has yet to commit."),
    "kvstore_consumer_log_bytes": ("gauge", ("consumer", "table"), "Bytes of log from its position on, of a bucket."),
    "kvstore_replica_lag_edits": ("gauge", ("replica",), "Edits of the catalog that a replica lacks."),
}
_STATUS = ("rows", "changes", "log_bytes", "index_bytes")
_OF_READERS = (
    "kvstore_consumer_lag_changes",
    "kvstore_consumer_lag_seconds",
    "kvstore_consumer_log_bytes",
    "kvstore_replica_lag_edits",
)


def figures(store: Store) -> str:
    """The text that Prometheus reads; a table that can't be read has only ``kvstore_table_readable``.

    Raises:
        CorruptImage, UnsupportedVersion: The catalog can't be loaded.
    """
    figures_of: dict[str, Any] = {name: {} for name in _ABOUT}
    figures_of["kvstore_catalog_edits"] = store.txid
    for definition in definitions(store, matching(store)):
        status = summary(definition)["status"]
        figures_of["kvstore_table_readable"][definition.name] = int(not is_error(status))
        for name in () if is_error(status) else _STATUS:
            if status[name] is not None:
                figures_of[f"kvstore_table_{name}"][definition.name] = status[name]
    with suppress(StoreError):  # the pages say what can't be read
        metrics = store.metrics()
        figures_of |= {name: metrics[name] for name in _OF_READERS}
    return prometheus_text(figures_of, _ABOUT)
