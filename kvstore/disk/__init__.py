"""The disk: files, places, locks, and LMDB environments and their pages."""
