"""What a process does for itself: calls that Ctrl-C does not stop halfway, signals, what it counts and times."""
