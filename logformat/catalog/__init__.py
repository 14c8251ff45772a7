"""Formats of the catalog: edits, images, and the files beside them."""
