"""Functions of aggregates: what becomes of a column's value when another is merged into it."""
