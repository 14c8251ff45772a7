"""``kvstore load``."""
