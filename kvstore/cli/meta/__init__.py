"""``kvstore meta``."""
