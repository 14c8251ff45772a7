"""Rows that are newer than the index of their bucket."""
