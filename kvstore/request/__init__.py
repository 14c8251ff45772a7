"""Requests: what a caller gives, brought into a table's columns and cut by bucket, before a bucket's turn comes."""
