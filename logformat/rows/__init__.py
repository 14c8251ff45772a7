"""Formats of rows: types, keys, values, and how values of other programs become ours."""
