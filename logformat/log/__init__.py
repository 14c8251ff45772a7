"""Formats of the log: batches, segments, and what is derived from them."""
