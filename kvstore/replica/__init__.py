"""Replicas: copies of a store elsewhere, what they lack, and how they are mended."""
