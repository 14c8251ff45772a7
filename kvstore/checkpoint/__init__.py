"""Checkpoints of the catalog: who decides on one, and the process that makes the image."""
