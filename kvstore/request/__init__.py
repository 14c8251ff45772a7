"""Request preparation: converts given data to a table's columns and partitions it, before it enters a bucket queue."""
