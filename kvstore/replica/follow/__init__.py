"""Following: a local copy of a store is kept current from a replica."""
