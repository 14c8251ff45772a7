"""Commands about tables: what they are, their rows, and the versions of a row."""
