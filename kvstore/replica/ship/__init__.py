"""Shipping: from a store to its replicas."""
