"""``kvstore job``."""
