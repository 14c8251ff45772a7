"""One bucket: its write path, its recovery, its snapshots, and who may write it."""
