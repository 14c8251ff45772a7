"""Pages about one table."""
