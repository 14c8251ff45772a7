"""Functions of the aggregate engine: each merges an incoming value into a column's current value."""
