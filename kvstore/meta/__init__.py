"""Catalog: its state, and the journal of edits that state is made of."""
