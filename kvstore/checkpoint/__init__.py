"""Checkpoints of the catalog: the controller that starts them, and the worker process that writes the image."""
