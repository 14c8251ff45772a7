"""``kvstore export``."""
