"""A connector for Spark: Scala in Spark's own process, and a helper process of Python that reads and plans."""
