"""Formats of the catalog: edits, images, and its small files."""
