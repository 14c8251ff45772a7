"""Log: segments of record batches, appended by one process and read by any."""
