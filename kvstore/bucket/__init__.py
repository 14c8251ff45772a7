"""One bucket: its write path, its recovery, its snapshots, and which process may write it."""
