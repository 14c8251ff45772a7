"""Pages about the whole store."""
