"""Commits over several tables."""
