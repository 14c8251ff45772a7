"""Formats of rows: types, keys, values, and the conversion of given values to stored types."""
