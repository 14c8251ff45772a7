"""Tests of kvstore/memtable."""
