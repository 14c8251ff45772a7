"""What the store knows of each type that a column may have."""
