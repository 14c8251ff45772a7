"""Ingestion jobs: every file that comes to a place into a table, once."""
