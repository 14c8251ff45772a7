"""``kvstore demo``."""
