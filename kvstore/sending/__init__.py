"""Writes of several processes: requests for a bucket that another process owns are sent to that process."""
