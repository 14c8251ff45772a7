"""Replicas: shipping, checking, repairing, restoring and following copies of a store elsewhere."""
