"""Repair of a damaged store, from its own files and from a replica."""
