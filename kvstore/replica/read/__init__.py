"""Reading a replica in place, and restoring a store from it."""
