"""Stores that were written once, and are read by every version after."""
