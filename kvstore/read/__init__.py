"""Reading a table: rows, changes, earlier states, and how they are cut up for readers in parallel."""
