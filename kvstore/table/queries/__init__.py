"""A table for programs that query: SQL of DuckDB, and a dataset of pyarrow."""
