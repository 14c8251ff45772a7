"""Spark writes: tasks stage rows, one commit applies them."""
