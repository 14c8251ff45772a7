"""Reading a table: rows, changes, earlier states, and their division among parallel readers."""
