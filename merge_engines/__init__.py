"""Merge engines: what becomes of a stored row when an operation meets it. Pure and columnar."""
