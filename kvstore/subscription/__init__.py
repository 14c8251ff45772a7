"""Subscriptions: consumers that read changes and move their position with what they have processed."""
