"""``kvstore consumers``: registered readers of changes, and how far they lag."""

from __future__ import annotations

from typing import Any

from kvstore.cli.arguments import AsJson, Directory, opened_store
from kvstore.cli.printing import print_json, print_table


def consumers(path: Directory, as_json: AsJson = False) -> None:
    """List the consumers of all tables: their positions, and how far they lag.

    A consumer keeps the log from its position on. One that no reader uses any more keeps more and more: drop it in
    Python with store.drop_consumer(name).
    """
    with opened_store(path) as store:
        positions, metrics = store.consumers, store.metrics("dict")
    lags: list[dict[str, Any]] = [
        {
            "consumer": name,
            "table": table,
            "position": list(offsets.values()) if len(offsets) > 1 else offsets[0],
            **{word: metrics[metric].get(name, {}).get(table) for word, metric in _LAGS.items()},
        }
        for name, tables in sorted(positions.items())
        for table, offsets in sorted(tables.items())
    ]
    if as_json:
        print_json(lags)
    else:
        print_table(["consumer", "table", "position", *_LAGS], [list(each.values()) for each in lags])


_LAGS = {
    "lag_changes": "kvstore_consumer_lag_changes",
    "lag_seconds": "kvstore_consumer_lag_seconds",
    "log_bytes": "kvstore_consumer_log_bytes",
}
