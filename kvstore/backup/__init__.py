"""Backups: copies of a store, as of one cut, that open like any store."""
