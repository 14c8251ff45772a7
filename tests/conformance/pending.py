"""Vectors of what is still to come, by name, under the feature they wait for; one that runs must not stand here."""

PENDING: dict[str, tuple[str, ...]] = {
    "log retention: a log that begins after offset 0": (
        "ws_truncate_and_reload",
        "ws_delete_snapshots_before",
    ),
}
