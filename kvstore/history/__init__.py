"""The past of a table: the versions of one row, and changes that undo only some of the changes."""
