"""Merge engines: rules that compute a row from the stored row and the incoming operation. Pure and columnar."""
