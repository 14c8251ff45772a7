"""Commits over several buckets, and the names that the catalog keeps: writers and consumers."""
