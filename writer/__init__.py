"""Client of a table: batches rows, numbers its batches and sends them until they are acknowledged."""
