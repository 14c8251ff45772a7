"""Shared tables: tables in an object store that Spark writes from any machine."""
