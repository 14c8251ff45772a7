"""Reads of a bucket that another process may be writing."""
