"""Parts of the write path: what a batch exchanges in the index, and the merge of a few rows one by one."""
