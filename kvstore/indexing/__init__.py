"""Secondary indexes: entries that find rows by other columns than their key."""
