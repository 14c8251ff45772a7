"""Spark reads: batches, streams, filters and splits."""
