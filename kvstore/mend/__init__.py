"""Mending a store that is damaged: from what it has itself, and from a replica."""
