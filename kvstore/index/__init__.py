"""Index of a bucket: its rows and writers in an LMDB environment."""
