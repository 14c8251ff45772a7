"""A directory as one store: what one process shares of it, and what is opened of it."""
