"""Repair of a damaged store: from what it has itself, and from a replica."""
