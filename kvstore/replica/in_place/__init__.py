"""A replica that is opened in its place, to be read as a store is."""
