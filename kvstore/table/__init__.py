"""A table as its users see it."""
