"""Index: LMDB environments, and the rows and writers of one bucket in them."""
