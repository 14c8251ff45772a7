"""Vectors of what is still to come, by name, under the feature they wait for; one that runs must not stand here."""

PENDING: dict[str, tuple[str, ...]] = {
    "auto-increment": (
        "auto_increment_segments",
        "auto_increment_range_update",
        "auto_increment_int_overflow",
    ),
    "scan": ("limit_scan",),
    "log retention: a log that begins after offset 0": (
        "ws_truncate_and_reload",
        "ws_delete_snapshots_before",
    ),
    "bucket": (
        "bucket_hex:000a_mod_7",
        "bucket_hex:000a0a0a_mod_12",
        "bucket_2bb87d68-baf_mod_16",
        "bucket_The quick br_mod_8",
    ),
}
