"""Parts of the write path: what a batch exchanges in the index, and which change records that makes."""
