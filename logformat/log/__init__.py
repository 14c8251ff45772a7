"""Formats of the log: batches, segments, and files derived from them."""
