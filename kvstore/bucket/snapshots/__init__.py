"""Snapshots of a bucket: their files, and the rows in them."""
