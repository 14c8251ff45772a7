"""Patches: changes of a table in a file that people review, applied once if nothing has changed meanwhile."""
