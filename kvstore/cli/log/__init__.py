"""``kvstore log``."""
