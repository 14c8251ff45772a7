"""Formats of a replica's objects."""
