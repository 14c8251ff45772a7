"""How fast, beside others with the same rows at the same durability in the same run; see docs/performance.md."""
