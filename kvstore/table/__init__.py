"""One table: its write path, its reads, and bringing its index back."""
